//! What an SDK error means: a definite no, a throttle, or no certain answer.

use aws_sdk_sagemaker::config::http::HttpResponse;
use aws_sdk_sagemaker::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use bakeoff_domain::sagemaker::error::AwsError;

/// SageMaker has no status code for "not found": unknown jobs are a ValidationException with this
/// text (aws/aws-sdk#165; boto3#2808).
const NOT_FOUND_TEXT: &str = "Requested resource not found";

/// SageMaker's and CloudWatch's own definite refusals: nothing happened, and asking again will not
/// help. A code that is not among them is no certain answer: a proxy's 403, a clock that is off, a
/// code that AWS adds later.
const DEFINITE: [&str; 17] = [
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

/// Only an answer with a status below 500 and a code that is known for a definite no is certain.
/// Everything else may have happened.
#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
pub(crate) fn classify<E>(error: SdkError<E, HttpResponse>) -> AwsError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    // Whatever its body says, or a proxy in between.
    if error
        .raw_response()
        .is_some_and(|response| response.status().as_u16() == 429)
    {
        return AwsError::Throttled(DisplayErrorContext(&error).to_string());
    }
    let SdkError::ServiceError(context) = &error else {
        return AwsError::Unknown(DisplayErrorContext(&error).to_string());
    };
    let code = context.err().code().unwrap_or_default().to_owned();
    let message = context.err().message().unwrap_or_default().to_owned();
    let is_server_fault = context.raw().status().as_u16() >= 500;
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
        "ExpiredTokenException" | "ExpiredToken" => AwsError::Expired(message),
        "ResourceInUse" => AwsError::AlreadyExists(message),
        "ResourceLimitExceeded" => AwsError::LimitExceeded(message),
        "ResourceNotFound" => AwsError::NotFound(message),
        "ValidationException" if message.contains(NOT_FOUND_TEXT) => AwsError::NotFound(message),
        definite if DEFINITE.contains(&definite) => AwsError::Rejected { code, message },
        "" => AwsError::Unknown(DisplayErrorContext(&error).to_string()),
        _ => AwsError::Unknown(format!("{code}: {message}")),
    }
}
