//! The caller's identity, on aws-sdk-sts.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sts::Client;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::ports::Identity;

use crate::error::classify;

/// The Security Token Service.
#[derive(Debug, Clone)]
pub struct Sts {
    client: Client,
}

impl Sts {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

#[async_trait]
impl Identity for Sts {
    async fn account(&self) -> Result<String, AwsError> {
        let caller = self
            .client
            .get_caller_identity()
            .send()
            .await
            .map_err(classify)?;
        caller
            .account()
            .map(str::to_owned)
            .ok_or_else(|| AwsError::Unknown("STS named no account".to_owned()))
    }
}
