//! Objects on aws-sdk-s3: output of training scripts, and our own fence.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::Builder;
use aws_sdk_s3::operation::get_object::GetObjectError;
use aws_sdk_s3::types::{
    CompletedMultipartUpload, CompletedPart, CopyPartResult, Delete, ObjectIdentifier,
};
use aws_smithy_types::DateTime as SdkDateTime;
use bakeoff_domain::checkpoint::StoredObject;
use bakeoff_domain::ports::{CopySource, Objects, Page, PartCopy};
use bakeoff_domain::sagemaker::error::AwsError;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::convert::moment;
use crate::error::classify;

/// Only small objects are read whole: our own, and what trainers say of their checkpoints, which grows with
/// each line that they log.
const OBJECT_BYTES_MAX: i64 = 16 * 1024 * 1024;

/// Where S3 says which region a bucket is in.
const REGION_HEADER: &str = "x-amz-bucket-region";

/// What a key in a header keeps as it is.
const KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// S3.
#[derive(Debug, Clone)]
pub struct S3 {
    client: Client,
}

impl S3 {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        // A simulated region is a loopback address: its buckets have no host names.
        let is_simulated =
            config.endpoint_url().is_some() || std::env::var_os("AWS_ENDPOINT_URL_S3").is_some();
        Self {
            client: Client::from_conf(Builder::from(config).force_path_style(is_simulated).build()),
        }
    }
}

fn split(s3_uri: &str) -> (&str, &str) {
    let rest = s3_uri.strip_prefix("s3://").unwrap_or(s3_uri);
    rest.split_once('/').unwrap_or((rest, ""))
}

/// The header is exact to the second: rounded up, it never precedes the object itself.
fn unmodified_since(source: CopySource<'_>) -> SdkDateTime {
    let has_rest = source.written_at.timestamp_subsec_nanos() > 0;
    SdkDateTime::from_secs(source.written_at.timestamp() + i64::from(has_rest))
}

/// `bucket/key`, with the key percent-encoded, as the header asks.
fn copy_source(s3_uri: &str) -> String {
    let (bucket, key) = split(s3_uri);
    format!("{bucket}/{}", utf8_percent_encode(key, KEY))
}

impl S3 {
    /// A page of the objects whose keys begin with a prefix, with what follows it.
    async fn page(
        &self,
        bucket: &str,
        prefix: &str,
        token: Option<String>,
    ) -> Result<Page<StoredObject>, AwsError> {
        let call = self.client.list_objects_v2().bucket(bucket).prefix(prefix);
        let page = call
            .set_continuation_token(token)
            .send()
            .await
            .map_err(classify)?;
        let objects = page.contents().iter().filter_map(|object| {
            Some(StoredObject {
                key: object.key()?.strip_prefix(prefix)?.to_owned(),
                bytes: object
                    .size()
                    .and_then(|size| u64::try_from(size).ok())
                    .unwrap_or(0),
                written_at: object.last_modified().and_then(moment)?,
            })
        });
        Ok(Page {
            items: objects.collect(),
            next: page.next_continuation_token().map(str::to_owned),
        })
    }
}

#[async_trait]
impl Objects for S3 {
    async fn list(
        &self,
        s3_uri: &str,
        token: Option<String>,
    ) -> Result<Page<StoredObject>, AwsError> {
        let (bucket, prefix) = split(s3_uri);
        let prefix = format!("{}/", prefix.trim_end_matches('/'));
        self.page(bucket, &prefix, token).await
    }

    async fn list_prefix(
        &self,
        s3_uri: &str,
        token: Option<String>,
    ) -> Result<Page<StoredObject>, AwsError> {
        let (bucket, prefix) = split(s3_uri);
        self.page(bucket, prefix, token).await
    }

    async fn bucket_region(&self, bucket: &str) -> Result<Option<String>, AwsError> {
        match self.client.head_bucket().bucket(bucket).send().await {
            Ok(found) => Ok(found.bucket_region().map(str::to_owned)),
            Err(error) => {
                // Redirects and refusals name the region, too.
                let response = error.raw_response();
                let region = response
                    .and_then(|response| response.headers().get(REGION_HEADER))
                    .map(str::to_owned);
                let status = response.map(|response| response.status().as_u16());
                match (status, region) {
                    (Some(404), _) => Err(AwsError::NotFound(bucket.to_owned())),
                    (_, Some(region)) => Ok(Some(region)),
                    // An answer to HEAD has no body that could say why.
                    (Some(403), None) => Err(AwsError::Denied("403 Forbidden".to_owned())),
                    _ => Err(classify(error)),
                }
            }
        }
    }

    async fn delete(&self, s3_uri: &str, keys: &[String]) -> Result<(), AwsError> {
        let (bucket, prefix) = split(s3_uri);
        let prefix = prefix.trim_end_matches('/');
        let ids = keys.iter().filter_map(|key| {
            let id = ObjectIdentifier::builder().key(format!("{prefix}/{key}"));
            id.build().ok()
        });
        let all = Delete::builder()
            .set_objects(Some(ids.collect()))
            .quiet(true)
            .build()
            .map_err(|error| AwsError::Unknown(error.to_string()))?;
        let call = self.client.delete_objects().bucket(bucket).delete(all);
        let answer = call.send().await.map_err(classify)?;
        match answer.errors().first() {
            None => Ok(()),
            Some(error) => {
                let said = format!(
                    "{}: {}",
                    error.key().unwrap_or(""),
                    error.message().unwrap_or("")
                );
                Err(match error.code() {
                    Some("AccessDenied") => AwsError::Denied(said),
                    _ => AwsError::Unknown(said),
                })
            }
        }
    }

    async fn copy(&self, source: CopySource<'_>, to: &str) -> Result<(), AwsError> {
        let (bucket, key) = split(to);
        let call = self.client.copy_object().bucket(bucket).key(key);
        let reply = call
            .copy_source(copy_source(source.s3_uri))
            .copy_source_if_unmodified_since(unmodified_since(source))
            .send()
            .await;
        reply.map(drop).map_err(classify)
    }

    async fn begin_upload(&self, to: &str) -> Result<String, AwsError> {
        let (bucket, key) = split(to);
        let call = self
            .client
            .create_multipart_upload()
            .bucket(bucket)
            .key(key);
        let begun = call.send().await.map_err(classify)?;
        let id = begun.upload_id().map(str::to_owned);
        id.ok_or_else(|| AwsError::Unknown("S3 named no upload".to_owned()))
    }

    async fn copy_part(&self, part: &PartCopy<'_>) -> Result<String, AwsError> {
        let (bucket, key) = split(part.to);
        let call = self.client.upload_part_copy().bucket(bucket).key(key);
        let copied = call
            .copy_source(copy_source(part.source.s3_uri))
            .copy_source_if_unmodified_since(unmodified_since(part.source))
            .copy_source_range(format!("bytes={}-{}", part.first, part.last))
            .upload_id(part.upload)
            .part_number(part.number)
            .send()
            .await
            .map_err(classify)?;
        let etag = copied.copy_part_result().and_then(CopyPartResult::e_tag);
        etag.map(str::to_owned)
            .ok_or_else(|| AwsError::Unknown("S3 named no part".to_owned()))
    }

    async fn end_upload(
        &self,
        to: &str,
        upload: &str,
        etags: Option<&[String]>,
    ) -> Result<(), AwsError> {
        let (bucket, key) = split(to);
        let Some(etags) = etags else {
            let call = self.client.abort_multipart_upload().bucket(bucket).key(key);
            let reply = call.upload_id(upload).send().await;
            return reply.map(drop).map_err(classify);
        };
        let part = |(number, etag): (i32, &String)| {
            CompletedPart::builder()
                .part_number(number)
                .e_tag(etag)
                .build()
        };
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some((1..).zip(etags).map(part).collect()))
            .build();
        let call = self
            .client
            .complete_multipart_upload()
            .bucket(bucket)
            .key(key);
        let reply = call.upload_id(upload).multipart_upload(parts).send().await;
        reply.map(drop).map_err(classify)
    }

    async fn get(&self, s3_uri: &str) -> Result<Option<Vec<u8>>, AwsError> {
        let (bucket, key) = split(s3_uri);
        let found = match self
            .client
            .get_object()
            .bucket(bucket)
            .key(key)
            .send()
            .await
        {
            Ok(found) => found,
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(GetObjectError::is_no_such_key) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(classify(error)),
        };
        if found
            .content_length()
            .is_some_and(|length| length > OBJECT_BYTES_MAX)
        {
            return Err(AwsError::Unknown(format!(
                "{s3_uri} is larger than {OBJECT_BYTES_MAX} bytes"
            )));
        }
        let body = found
            .body
            .collect()
            .await
            .map_err(|error| AwsError::Unknown(error.to_string()))?;
        Ok(Some(body.into_bytes().to_vec()))
    }

    async fn put(&self, s3_uri: &str, body: Vec<u8>) -> Result<(), AwsError> {
        let (bucket, key) = split(s3_uri);
        let call = self
            .client
            .put_object()
            .bucket(bucket)
            .key(key)
            .body(body.into());
        call.send().await.map(drop).map_err(classify)
    }
}
