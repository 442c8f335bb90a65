//! Job metrics on aws-sdk-cloudwatch: batched GetMetricData.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::types::{
    Dimension, Metric, MetricDataQuery, MetricDataResult, MetricStat, ScanBy, StatusCode,
};
use bakeoff_domain::ports::{JobMetrics, Page, Window};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::metrics::{MetricQuery, Series};

use crate::convert::{moment, sdk_moment};
use crate::error::classify;

const NAMESPACE: &str = "/aws/sagemaker/TrainingJobs";

/// CloudWatch in one region.
#[derive(Debug, Clone)]
pub struct CloudWatch {
    client: Client,
}

impl CloudWatch {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

fn query(index: usize, query: &MetricQuery, period_seconds: i32) -> MetricDataQuery {
    let dimension = Dimension::builder()
        .name(query.dimension)
        .value(&query.value)
        .build();
    let metric = Metric::builder()
        .namespace(NAMESPACE)
        .metric_name(&query.metric)
        .dimensions(dimension)
        .build();
    let stat = MetricStat::builder()
        .metric(metric)
        .period(period_seconds)
        .stat("Average")
        .build();
    MetricDataQuery::builder()
        .id(format!("q{index}"))
        .metric_stat(stat)
        .return_data(true)
        .build()
}

#[async_trait]
impl JobMetrics for CloudWatch {
    async fn read(
        &self,
        queries: &[MetricQuery],
        window: Window,
        token: Option<String>,
    ) -> Result<Page<Series>, AwsError> {
        let period = i32::try_from(window.period.num_seconds()).unwrap_or(i32::MAX);
        let asked: Vec<MetricDataQuery> = queries
            .iter()
            .enumerate()
            .map(|(index, q)| query(index, q, period))
            .collect();
        let page = self
            .client
            .get_metric_data()
            .set_metric_data_queries(Some(asked))
            .start_time(sdk_moment(window.start))
            .end_time(sdk_moment(window.end))
            .scan_by(ScanBy::TimestampAscending)
            .set_next_token(token)
            .send()
            .await
            .map_err(classify)?;
        let mut items: Vec<Series> = vec![Series::default(); queries.len()];
        for result in page.metric_data_results() {
            fill(&mut items, result);
        }
        Ok(Page {
            items,
            next: page.next_token().map(str::to_owned),
        })
    }
}

fn fill(series: &mut [Series], result: &MetricDataResult) {
    let index = result
        .id()
        .and_then(|id| id.strip_prefix('q'))
        .and_then(|digits| digits.parse::<usize>().ok());
    let Some(target) = index.and_then(|index| series.get_mut(index)) else {
        return;
    };
    let points = result.timestamps().iter().zip(result.values());
    target
        .points
        .extend(points.filter_map(|(at, value)| Some((moment(at)?, *value))));
    // PartialData, InternalError, Forbidden and any future status: the answer may be incomplete.
    let status = result.status_code();
    target.is_complete = status.is_none_or(|status| *status == StatusCode::Complete);
    target.is_failed = matches!(
        status,
        Some(StatusCode::InternalError | StatusCode::Forbidden)
    );
}
