//! Objects in S3, each call paced and counted. What they mean is decided elsewhere.

use bakeoff_domain::checkpoint::StoredObject;
use bakeoff_domain::checkpoint::copy::Copied;
use bakeoff_domain::ports::{CopySource, PartCopy};
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::{DateTime, Utc};

use super::{Aws, LIST_PAGES_MAX, Operation};
use crate::replica::pulse::Pulse;

/// Larger objects are copied in parts of this size, so that no call takes longer than its timeout, also
/// where S3 copies only some ten megabytes a second.
const PART_BYTES: u64 = 128 * 1024 * 1024;
/// Tries of a call that copies.
const TRIES: u32 = 4;

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

    /// The objects that a job would read from an address: one, or all whose addresses begin with it. `None` of
    /// more than 200,000.
    pub async fn list_input(
        &self,
        s3_uri: &str,
        pulse: &Pulse,
    ) -> Result<Option<Vec<StoredObject>>, AwsError> {
        let (mut objects, mut token) = (Vec::new(), None);
        for _ in 0..LIST_PAGES_MAX {
            pulse.beat();
            self.wait_for(Operation::ListObjectsV2).await?;
            let reply = self.ports.objects.list_prefix(s3_uri, token).await;
            let page = self.count(Operation::ListObjectsV2, reply, 0)?;
            objects.extend(page.items);
            token = page.next;
            if token.is_none() {
                return Ok(Some(objects));
            }
        }
        Ok(None)
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

    /// Whether anything lies below a prefix, by the first page of its listing.
    pub async fn has_objects(&self, s3_uri: &str) -> Result<bool, AwsError> {
        self.wait_for(Operation::ListObjectsV2).await?;
        let reply = self.ports.objects.list(s3_uri, None).await;
        let page = self.count(Operation::ListObjectsV2, reply, 0)?;
        Ok(!page.items.is_empty())
    }

    /// Copies an object within S3, unless it was written again since it was listed. A copy that breaks off
    /// leaves nothing behind that can be seen.
    pub async fn copy_object(&self, from: &str, to: &str, object: &Copied) -> Result<(), AwsError> {
        let source = CopySource {
            s3_uri: from,
            written_at: object.written_at,
        };
        if object.bytes <= PART_BYTES {
            let copy = || self.ports.objects.copy(source, to);
            return self.several(Operation::CopyObject, copy).await;
        }
        let begin = || self.ports.objects.begin_upload(to);
        let upload = self
            .several(Operation::CreateMultipartUpload, begin)
            .await?;
        let copied = self.copy_parts(source, to, &upload, object.bytes).await;
        let end = || {
            let etags = copied.as_deref().ok();
            self.ports.objects.end_upload(to, &upload, etags)
        };
        let ended = self.several(Operation::CompleteMultipartUpload, end).await;
        copied.and(ended)
    }

    async fn copy_parts(
        &self,
        source: CopySource<'_>,
        to: &str,
        upload: &str,
        bytes: u64,
    ) -> Result<Vec<String>, AwsError> {
        let mut etags = Vec::new();
        for number in 1..=bytes.div_ceil(PART_BYTES) {
            let first = (number - 1) * PART_BYTES;
            let part = PartCopy {
                source,
                to,
                upload,
                number: i32::try_from(number).unwrap_or(i32::MAX),
                first,
                last: (first + PART_BYTES).min(bytes) - 1,
            };
            let copy = || self.ports.objects.copy_part(&part);
            etags.push(self.several(Operation::UploadPartCopy, copy).await?);
        }
        Ok(etags)
    }

    /// Makes a call that may be repeated, several times where AWS throttles or does not answer.
    async fn several<T, F>(
        &self,
        operation: Operation,
        mut call: impl FnMut() -> F,
    ) -> Result<T, AwsError>
    where
        F: Future<Output = Result<T, AwsError>>,
    {
        let mut left = TRIES;
        loop {
            self.wait_for(operation).await?;
            let reply = self.count(operation, call().await, 0);
            left -= 1;
            match reply {
                Err(AwsError::Throttled(_) | AwsError::Unknown(_)) if left > 0 => {}
                reply => return reply,
            }
        }
    }
}
