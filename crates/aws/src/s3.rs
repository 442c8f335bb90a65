//! What training scripts write, on aws-sdk-s3.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::Builder;
use bakeoff_domain::ports::{AwsError, Objects};
use chrono::{DateTime, Utc};

use crate::convert::moment;
use crate::error::classify;

/// A thousand objects each. Names of checkpoints do not sort by time, so all are listed.
const PAGES_MAX: usize = 20;

/// S3.
#[derive(Debug, Clone)]
pub struct S3 {
    client: Client,
}

impl S3 {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        // A simulated region is a loopback address: its buckets have no host names of their own.
        let is_simulated = config.endpoint_url().is_some() || std::env::var_os("AWS_ENDPOINT_URL_S3").is_some();
        Self { client: Client::from_conf(Builder::from(config).force_path_style(is_simulated).build()) }
    }
}

#[async_trait]
impl Objects for S3 {
    async fn newest(&self, s3_uri: &str) -> Result<Option<DateTime<Utc>>, AwsError> {
        let rest = s3_uri.strip_prefix("s3://").unwrap_or(s3_uri);
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let mut newest = None;
        let mut token = None;
        for _ in 0..PAGES_MAX {
            let call =
                self.client.list_objects_v2().bucket(bucket).prefix(format!("{}/", prefix.trim_end_matches('/')));
            let page = call.set_continuation_token(token).send().await.map_err(classify)?;
            let times = page.contents().iter().filter_map(|object| object.last_modified().and_then(moment));
            newest = newest.max(times.max());
            token = page.next_continuation_token().map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        Ok(newest)
    }
}
