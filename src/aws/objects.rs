//! Objects in S3, each call paced and counted.

use bakeoff_domain::checkpoint::StoredObject;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::ports::PartCopy;
use chrono::{DateTime, Utc};

use super::{Aws, LIST_PAGES_MAX, Operation};
use crate::pulse::Pulse;

/// Larger objects are copied in parts of this size: S3 copies some hundred megabytes a second, and no call
/// takes longer than the timeout.
const PART_BYTES: u64 = 512 * 1024 * 1024;

impl Aws {
    /// The time the newest object below a prefix was written.
    pub async fn newest_object(
        &self,
        s3_uri: &str,
        pulse: &Pulse,
    ) -> Result<Option<DateTime<Utc>>, AwsError> {
        let ask = |token| {
            pulse.beat();
            self.ports.objects.list(s3_uri, token)
        };
        Ok(self
            .pages(Operation::ListObjectsV2, LIST_PAGES_MAX, ask)
            .await?
            .into_iter()
            .map(|object| object.written_at)
            .max())
    }

    /// The objects below a prefix, with keys relative to it.
    pub async fn list_objects(&self, s3_uri: &str) -> Result<Vec<StoredObject>, AwsError> {
        let ask = |token| self.ports.objects.list(s3_uri, token);
        self.pages(Operation::ListObjectsV2, LIST_PAGES_MAX, ask)
            .await
    }

    /// Deletes objects below a prefix, at most 1,000.
    pub async fn delete_objects(&self, s3_uri: &str, keys: &[String]) -> Result<(), AwsError> {
        self.wait_for(Operation::DeleteObjects).await?;
        let reply = self.ports.objects.delete(s3_uri, keys).await;
        self.count(Operation::DeleteObjects, reply, 0)
    }

    /// Reads a small object of our own.
    pub async fn get_object(&self, s3_uri: &str) -> Result<Option<Vec<u8>>, AwsError> {
        self.wait_for(Operation::GetObject).await?;
        self.count(
            Operation::GetObject,
            self.ports.objects.get(s3_uri).await,
            0,
        )
    }

    pub async fn put_object(&self, s3_uri: &str, body: Vec<u8>) -> Result<(), AwsError> {
        self.wait_for(Operation::PutObject).await?;
        self.count(
            Operation::PutObject,
            self.ports.objects.put(s3_uri, body).await,
            0,
        )
    }
    pub async fn bucket_region(&self, bucket: &str) -> Result<Option<String>, AwsError> {
        self.wait_for(Operation::HeadBucket).await?;
        let reply = self.ports.objects.bucket_region(bucket).await;
        self.count(Operation::HeadBucket, reply, 0)
    }

    /// Whether the objects below a prefix may be listed: its first page.
    pub async fn try_objects(&self, s3_uri: &str) -> Result<(), AwsError> {
        self.wait_for(Operation::ListObjectsV2).await?;
        let reply = self.ports.objects.list(s3_uri, None).await;
        self.count(Operation::ListObjectsV2, reply, 0).map(drop)
    }

    /// Copies an object within S3. A copy that breaks off leaves nothing behind that can be seen.
    pub async fn copy_object(&self, from: &str, to: &str, bytes: u64) -> Result<(), AwsError> {
        if bytes <= PART_BYTES {
            self.wait_for(Operation::CopyObject).await?;
            let reply = self.ports.objects.copy(from, to).await;
            return self.count(Operation::CopyObject, reply, 0);
        }
        self.wait_for(Operation::CreateMultipartUpload).await?;
        let upload = self.ports.objects.begin_upload(to).await;
        let upload = self.count(Operation::CreateMultipartUpload, upload, 0)?;
        let copied = self.copy_parts(from, to, &upload, bytes).await;
        let etags = copied.as_deref().ok();
        self.wait_for(Operation::CompleteMultipartUpload).await?;
        let ended = self.ports.objects.end_upload(to, &upload, etags).await;
        let ended = self.count(Operation::CompleteMultipartUpload, ended, 0);
        copied.and(ended)
    }

    async fn copy_parts(
        &self,
        from: &str,
        to: &str,
        upload: &str,
        bytes: u64,
    ) -> Result<Vec<String>, AwsError> {
        let mut etags = Vec::new();
        for number in 1..=bytes.div_ceil(PART_BYTES) {
            let first = (number - 1) * PART_BYTES;
            let part = PartCopy {
                from,
                to,
                upload,
                number: i32::try_from(number).unwrap_or(i32::MAX),
                first,
                last: (first + PART_BYTES).min(bytes) - 1,
            };
            self.wait_for(Operation::UploadPartCopy).await?;
            let reply = self.ports.objects.copy_part(&part).await;
            etags.push(self.count(Operation::UploadPartCopy, reply, 0)?);
        }
        Ok(etags)
    }
}
