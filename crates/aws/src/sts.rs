//! The caller's identity, on aws-sdk-sts.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sts::Client;
use aws_sdk_sts::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_sts::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sts::error::BoxError;
use bakeoff_domain::doctor::Caller;
use bakeoff_domain::ports::{CallerReply, Identity};
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::{DateTime, Utc};

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

/// Keeps the `Date` of an answer, whatever it says.
#[derive(Debug, Clone, Default)]
struct AnswerDate(Arc<Mutex<Option<DateTime<Utc>>>>);

impl AnswerDate {
    fn seen(&self) -> Option<DateTime<Utc>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for AnswerDate {
    fn name(&self) -> &'static str {
        "AnswerDate"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|text| DateTime::parse_from_rfc2822(text).ok());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            date.map(|moment| moment.with_timezone(&Utc));
        Ok(())
    }
}

#[async_trait]
impl Identity for Sts {
    async fn caller(&self) -> CallerReply {
        let date = AnswerDate::default();
        let call = self.client.get_caller_identity().customize();
        let reply = call.interceptor(date.clone()).send().await;
        let caller = reply.map_err(classify).and_then(|found| {
            found
                .account()
                .map(|account| Caller {
                    account: account.to_owned(),
                    arn: found.arn().unwrap_or_default().to_owned(),
                })
                .ok_or_else(|| AwsError::Unknown("STS named no account".to_owned()))
        });
        CallerReply {
            caller,
            answered_at: date.seen(),
        }
    }
}
