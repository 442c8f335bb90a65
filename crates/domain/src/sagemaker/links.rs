//! Links into AWS's console.

use super::log::GROUP;

/// The page of a training job.
pub fn job(region: &str, job_name: &str) -> String {
    format!(
        "https://{region}.console.aws.amazon.com/sagemaker/home?region={region}#/jobs/{job_name}"
    )
}

/// The log streams of a training job.
pub fn log(region: &str, job_name: &str) -> String {
    let group = GROUP.replace('/', "%252F");
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
            job("us-east-1", "bakeoff-x-1"),
            "https://us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/jobs/bakeoff-x-1"
        );
        assert!(
            log("us-east-1", "x").ends_with(
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
