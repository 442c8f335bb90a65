//! What DescribeTrainingJob answers, member for member as AWS wrote it: for jobs that are not ours, and are made into an
//! experiment. The SDK's type has no way back to JSON, and knows only the members of its own day.

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::config::interceptors::AfterDeserializationInterceptorContextRef;
use aws_sdk_sagemaker::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sagemaker::error::BoxError;
use bakeoff_domain::sagemaker::error::AwsError;
use serde_json::Value;

use crate::error::classify;
use crate::{OPERATION_TIMEOUT, load};

/// Keeps the body of an answer.
#[derive(Debug, Clone, Default)]
struct Body(Arc<Mutex<Vec<u8>>>);

impl Intercept for Body {
    fn name(&self) -> &'static str {
        "Body"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(bytes) = context.response().body().bytes() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
        }
        Ok(())
    }
}

/// A training job of the caller's own account, with the credentials of this process.
pub async fn description(region: String, job_name: &str) -> Result<Value, AwsError> {
    let client = Client::new(&load(region, OPERATION_TIMEOUT).await);
    let body = Body::default();
    client
        .describe_training_job()
        .training_job_name(job_name)
        .customize()
        .interceptor(body.clone())
        .send()
        .await
        .map_err(classify)?;
    let bytes = body.0.lock().unwrap_or_else(PoisonError::into_inner);
    serde_json::from_slice(&bytes)
        .map_err(|error| AwsError::Unknown(format!("its answer: {error}")))
}
