//! Links into AWS's console.

use super::kind::JobKind;
use super::log::group;

/// The page of a job.
pub fn job(kind: JobKind, region: &str, job_name: &str) -> String {
    let page = match kind {
        JobKind::Training => "jobs",
        JobKind::Processing => "processing-jobs",
        JobKind::Tuning => "hyper-tuning-jobs",
        JobKind::Transform => "transform-jobs",
        JobKind::Endpoint => "endpoints",
    };
    format!(
        "https://{region}.console.aws.amazon.com/sagemaker/home?region={region}#/{page}/{job_name}"
    )
}

/// The log streams of a job.
pub fn log(kind: JobKind, region: &str, job_name: &str) -> String {
    let group = group(kind).replace('/', "%252F");
    format!(
        "https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}#logsV2:log-groups/log-group/{group}\
         $3FlogStreamNameFilter$3D{job_name}%252F"
    )
}

/// An object or prefix in S3.
pub fn object(region: &str, s3_uri: &str) -> Option<String> {
    let (bucket, key) = s3_uri.strip_prefix("s3://")?.split_once('/')?;
    let kind = if key.is_empty() || key.ends_with('/') {
        "buckets"
    } else {
        "object"
    };
    Some(format!(
        "https://{region}.console.aws.amazon.com/s3/{kind}/{bucket}?region={region}&prefix={key}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_lead_to_the_region_and_the_job() {
        assert_eq!(
            job(JobKind::Training, "us-east-1", "bakeoff-x-1"),
            "https://us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/jobs/bakeoff-x-1"
        );
        assert!(
            log(JobKind::Training, "us-east-1", "x").ends_with(
                "%252Faws%252Fsagemaker%252FTrainingJobs$3FlogStreamNameFilter$3Dx%252F"
            )
        );
        assert_eq!(
            object("us-east-1", "s3://b/k/model.tar.gz").unwrap(),
            "https://us-east-1.console.aws.amazon.com/s3/object/b?region=us-east-1&prefix=k/model.tar.gz"
        );
        assert_eq!(object("us-east-1", "file"), None);
    }
}
