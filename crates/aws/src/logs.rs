//! Logs of jobs on aws-sdk-cloudwatchlogs.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_cloudwatchlogs::Client;
use bakeoff_domain::ports::{LogPage, LogRequest, LogSearch, Logs, Page};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::log::{LogLine, group};
use chrono::DateTime;

use crate::convert::readable;
use crate::error::classify;

/// DescribeLogStreams returns at most 50.
const STREAMS: i32 = 50;

/// CloudWatch Logs in one region.
#[derive(Debug, Clone)]
pub struct CloudWatchLogs {
    client: Client,
}

impl CloudWatchLogs {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

#[async_trait]
impl Logs for CloudWatchLogs {
    async fn streams(
        &self,
        kind: JobKind,
        prefix: &str,
        token: Option<String>,
    ) -> Result<Page<String>, AwsError> {
        let call = self
            .client
            .describe_log_streams()
            .log_group_name(group(kind))
            .log_stream_name_prefix(prefix)
            .limit(STREAMS)
            .set_next_token(token);
        let page = match call.send().await.map_err(classify) {
            // The group appears with the account's first job.
            Err(AwsError::NotFound(_)) => {
                return Ok(Page {
                    items: Vec::new(),
                    next: None,
                });
            }
            page => page?,
        };
        let names = page
            .log_streams()
            .iter()
            .filter_map(|stream| stream.log_stream_name().map(str::to_owned));
        Ok(Page {
            items: names.collect(),
            next: page.next_token().map(str::to_owned),
        })
    }

    async fn lines(&self, request: &LogRequest) -> Result<LogPage, AwsError> {
        let limit = i32::try_from(request.limit).unwrap_or(i32::MAX);
        let call = self
            .client
            .get_log_events()
            .log_group_name(group(request.kind))
            .log_stream_name(&request.stream)
            .set_start_time(request.since.map(|since| since.timestamp_millis()))
            .set_end_time(request.until.map(|until| until.timestamp_millis()))
            .start_from_head(request.from_start)
            .limit(limit)
            .set_next_token(request.token.clone());
        let page = call.send().await.map_err(classify)?;
        let lines = page.events().iter().filter_map(|event| {
            Some(LogLine {
                at: DateTime::from_timestamp_millis(event.timestamp()?)?,
                stream: request.stream.clone(),
                message: readable(event.message().unwrap_or("")),
            })
        });
        Ok(LogPage {
            lines: lines.collect(),
            forward: page.next_forward_token().map(str::to_owned),
            backward: page.next_backward_token().map(str::to_owned),
        })
    }

    async fn search(&self, search: &LogSearch<'_>) -> Result<Page<LogLine>, AwsError> {
        let terms: Vec<String> = search
            .words
            .iter()
            .map(|word| format!("?\"{word}\""))
            .collect();
        let call = self
            .client
            .filter_log_events()
            .log_group_name(group(search.kind))
            .log_stream_name_prefix(search.prefix)
            .filter_pattern(terms.join(" "))
            .set_next_token(search.token.clone());
        let page = call.send().await.map_err(classify)?;
        let lines = page.events().iter().filter_map(|event| {
            Some(LogLine {
                at: DateTime::from_timestamp_millis(event.timestamp()?)?,
                stream: event.log_stream_name()?.to_owned(),
                message: readable(event.message().unwrap_or("")),
            })
        });
        Ok(Page {
            items: lines.collect(),
            next: page.next_token().map(str::to_owned),
        })
    }
}
