//! Training images, on aws-sdk-ecr.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_ecr::Client;
use aws_sdk_ecr::operation::batch_get_image::BatchGetImageError;
use aws_sdk_ecr::types::{ImageFailureCode, ImageIdentifier};
use bakeoff_domain::ports::Images;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::image::EcrImage;

use crate::error::classify;

/// The container registry in one region.
#[derive(Debug, Clone)]
pub struct Ecr {
    client: Client,
}

impl Ecr {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

#[async_trait]
impl Images for Ecr {
    /// Asks with BatchGetImage, which a pull needs anyway: repositories shared with other accounts, such
    /// as AWS's own, allow it and little else.
    async fn digest(&self, image: &EcrImage<'_>) -> Result<Option<String>, AwsError> {
        let id = ImageIdentifier::builder();
        let id = if image.is_digest() {
            id.image_digest(image.reference)
        } else {
            id.image_tag(image.reference)
        };
        let call = self.client.batch_get_image().registry_id(image.account);
        let call = call.repository_name(image.repository).image_ids(id.build());
        let reply = call.send().await;
        let found = match reply {
            Ok(found) => found,
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(BatchGetImageError::is_repository_not_found_exception) =>
            {
                return Err(AwsError::NotFound(image.repository.to_owned()));
            }
            Err(error) => return Err(classify(error)),
        };
        if let Some(image) = found.images().first() {
            let id = image.image_id().and_then(ImageIdentifier::image_digest);
            return Ok(Some(id.unwrap_or_default().to_owned()));
        }
        match found.failures().first() {
            Some(failure) if failure.failure_code() != Some(&ImageFailureCode::ImageNotFound) => {
                Err(AwsError::Unknown(
                    failure.failure_reason().unwrap_or_default().to_owned(),
                ))
            }
            _ => Ok(None),
        }
    }
}
