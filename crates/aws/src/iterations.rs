//! SageMaker's own training metric series on aws-sdk-sagemakermetrics: BatchGetMetrics, by
//! iteration.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sagemakermetrics::Client;
use aws_sdk_sagemakermetrics::types::{
    MetricQuery, MetricQueryResult, MetricQueryResultStatus, MetricStatistic, Period, XAxisType,
};
use bakeoff_domain::ports::{IterationMetrics, IterationPoint, IterationQuery};
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::DateTime;

use crate::error::classify;

/// SageMaker Metrics in one region.
#[derive(Debug, Clone)]
pub struct SageMakerMetrics {
    client: Client,
}

impl SageMakerMetrics {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

fn query(asked: &IterationQuery, axis: &XAxisType) -> MetricQuery {
    MetricQuery::builder()
        .metric_name(&asked.metric)
        .resource_arn(&asked.job_arn)
        .metric_stat(MetricStatistic::Last)
        .period(Period::IterationNumber)
        .x_axis_type(axis.clone())
        .build()
}

#[async_trait]
impl IterationMetrics for SageMakerMetrics {
    async fn read(&self, queries: &[IterationQuery]) -> Result<Vec<Vec<IterationPoint>>, AwsError> {
        let axes = [XAxisType::Timestamp, XAxisType::IterationNumber];
        let both = queries
            .iter()
            .flat_map(|asked| axes.iter().map(move |axis| query(asked, axis)));
        let answer = self
            .client
            .batch_get_metrics()
            .set_metric_queries(Some(both.collect()))
            .send()
            .await
            .map_err(classify)?;
        // Treating this as an empty series would lose its points: each series is read only once.
        if let Some(failed) = answer
            .metric_query_results()
            .iter()
            .find(|result| has_failed(result))
        {
            let why = failed.message().unwrap_or("no message");
            return Err(AwsError::Unknown(format!(
                "BatchGetMetrics failed within: {why}"
            )));
        }
        let mut results = answer.metric_query_results().iter();
        let mut series = Vec::with_capacity(queries.len());
        for _ in queries {
            series.push(points(results.next(), results.next()));
        }
        Ok(series)
    }
}

fn has_failed(result: &MetricQueryResult) -> bool {
    matches!(
        result.status(),
        Some(MetricQueryResultStatus::InternalError)
    )
}

/// Times with their values, plus the iterations if there are as many of them.
fn points(
    by_time: Option<&MetricQueryResult>,
    by_step: Option<&MetricQueryResult>,
) -> Vec<IterationPoint> {
    let is_known = |result: &&MetricQueryResult| {
        matches!(
            result.status(),
            Some(MetricQueryResultStatus::Complete | MetricQueryResultStatus::Truncated)
        )
    };
    let Some(times) = by_time.filter(is_known) else {
        return Vec::new();
    };
    let steps = by_step
        .filter(is_known)
        .map(MetricQueryResult::x_axis_values)
        .unwrap_or_default();
    let step = |place: usize| {
        steps
            .get(place)
            .copied()
            .filter(|_| steps.len() == times.x_axis_values().len())
    };
    let pairs = times
        .x_axis_values()
        .iter()
        .zip(times.metric_values())
        .enumerate();
    pairs
        .filter_map(|(place, (at, value))| {
            Some(IterationPoint {
                step: step(place),
                at: DateTime::from_timestamp(*at, 0)?,
                value: *value,
            })
        })
        .collect()
}
