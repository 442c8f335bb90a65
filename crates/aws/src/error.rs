//! Classifies SDK errors: definite refusal, throttle, or uncertain outcome.

use aws_sdk_sagemaker::config::http::HttpResponse;
use aws_sdk_sagemaker::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use bakeoff_domain::sagemaker::error::AwsError;

/// SageMaker has no status code for "not found": unknown jobs are a ValidationException with this
/// text (aws/aws-sdk#165; boto3#2808).
/// What SageMaker says of a job of each kind that it does not have, with the code of every other refusal.
const NOT_FOUND_TEXTS: [&str; 6] = [
    "Requested resource not found",
    "Could not find requested job",
    "Could not find job to update",
    "Could not find endpoint",
    "Could not find model",
    "Could not find requested transform job",
];

/// What it says of a model, a configuration or an endpoint whose name is taken, likewise.
const TAKEN_TEXTS: [&str; 1] = ["Cannot create already existing"];

/// Definite refusals by SageMaker and CloudWatch themselves: nothing happened, and a retry will not
/// help. Any other code is uncertain: a proxy's 403, a skewed clock, a code that AWS adds later.
const DEFINITE: [&str; 22] = [
    "PreconditionFailed",
    // S3: the bucket is in another region, or its name is invalid. Retrying never helps.
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "InvalidBucketName",
    "ValidationException",
    "ValidationError",
    "ConflictException",
    "ResourceNotFoundException",
    "NoSuchBucket",
    "NoSuchKey",
    "NoSuchResourceException",
    "InvalidParameterValue",
    "InvalidParameterCombination",
    "InvalidParameterException",
    "MissingRequiredParameterException",
    "MissingRequiredParameter",
    "InvalidNextToken",
    "InvalidPaginationTokenException",
    "SerializationException",
    "UnknownOperationException",
    "NotFoundException",
];

/// S3's error codes for keys and accounts that it rejects: retrying does not help until someone fixes them. SageMaker's
/// equivalents stay uncertain, because a skewed clock produces them too.
const NOT_ADMITTED: [&str; 7] = [
    "NotSignedUp",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AllAccessDisabled",
    "AccountProblem",
    "InvalidSecurity",
    "InvalidToken",
];

/// An error is definite only if its status is below 500 and its code is a known refusal. In every
/// other case the call may have taken effect.
#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
pub(crate) fn classify<E>(error: SdkError<E, HttpResponse>) -> AwsError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    // Regardless of the body, and even if a proxy sent it.
    if error
        .raw_response()
        .is_some_and(|response| response.status().as_u16() == 429)
    {
        return AwsError::Throttled(DisplayErrorContext(&error).to_string());
    }
    let SdkError::ServiceError(context) = &error else {
        return AwsError::Unknown(DisplayErrorContext(&error).to_string());
    };
    let code = context.err().code().unwrap_or("").to_owned();
    let message = context.err().message().unwrap_or("").to_owned();
    let is_server_fault = context.raw().status().as_u16() >= 500;
    if code.is_empty() && !is_server_fault {
        return AwsError::Unknown(DisplayErrorContext(&error).to_string());
    }
    of_code(code, message, is_server_fault)
}

fn of_code(code: String, message: String, is_server_fault: bool) -> AwsError {
    match code.as_str() {
        "ThrottlingException"
        | "Throttling"
        | "ThrottledException"
        | "RequestLimitExceeded"
        | "TooManyRequestsException"
        | "LimitExceededException"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "EC2ThrottledException"
        | "BandwidthLimitExceeded"
        | "PriorRequestNotComplete"
        | "SlowDown" => AwsError::Throttled(message),
        _ if is_server_fault => AwsError::Unknown(format!("{code}: {message}")),
        "AccessDeniedException"
        | "AccessDenied"
        | "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "OptInRequired" => AwsError::Denied(message),
        refused if NOT_ADMITTED.contains(&refused) => {
            AwsError::Denied(format!("{code}: {message}"))
        }
        "ExpiredTokenException" | "ExpiredToken" => AwsError::Expired(message),
        "ResourceInUse" => AwsError::AlreadyExists(message),
        "ResourceLimitExceeded" | "ServiceQuotaExceededException" => {
            AwsError::LimitExceeded(message)
        }
        "ResourceNotFound" | "ResourceNotFoundException" => AwsError::NotFound(message),
        "ValidationException" if NOT_FOUND_TEXTS.iter().any(|text| message.contains(text)) => {
            AwsError::NotFound(message)
        }
        "ValidationException" if TAKEN_TEXTS.iter().any(|text| message.contains(text)) => {
            AwsError::AlreadyExists(message)
        }
        // Of InvokeEndpoint: the container has refused, or is not up.
        "ModelError" => AwsError::Rejected { code, message },
        "ModelNotReadyException" => AwsError::Throttled(message),
        definite if DEFINITE.contains(&definite) => AwsError::Rejected { code, message },
        _ => AwsError::Unknown(format!("{code}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> AwsError {
        of_code(code.to_owned(), "said".to_owned(), false)
    }

    /// What S3 says for good is not asked again; what may pass is.
    #[test]
    fn what_s3_refuses_for_good_is_told_from_what_may_pass() {
        assert!(matches!(of("NotSignedUp"), AwsError::Denied(said) if said == "NotSignedUp: said"));
        assert!(matches!(of("SignatureDoesNotMatch"), AwsError::Denied(_)));
        assert!(matches!(of("PermanentRedirect"), AwsError::Rejected { .. }));
        assert!(matches!(of("SlowDown"), AwsError::Throttled(_)));
        // A skewed clock or a code that AWS adds later: the outcome is uncertain.
        assert!(matches!(
            of("InvalidSignatureException"),
            AwsError::Unknown(_)
        ));
        assert!(matches!(
            of_code("NotSignedUp".to_owned(), String::new(), true),
            AwsError::Unknown(_)
        ));
    }
}
