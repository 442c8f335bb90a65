//! SageMaker's built-in algorithms: which image is which, and the hyperparameters that each needs
//! (developer guide, the page of each algorithm's hyperparameters; SDK 2.257.7, `sagemaker/amazon`).

use bakeoff_domain::finding::Finding;
use serde_json::Value;

use crate::rules::found;

/// Name of an algorithm's repository, and the hyperparameters that must be given.
const ALGORITHMS: [(&str, &[&str]); 18] = [
    ("sagemaker-xgboost", &["num_round"]),
    ("xgboost", &["num_round"]),
    ("kmeans", &["k", "feature_dim"]),
    ("pca", &["num_components", "feature_dim", "mini_batch_size"]),
    ("linear-learner", &["predictor_type"]),
    (
        "factorization-machines",
        &["num_factors", "predictor_type", "feature_dim"],
    ),
    ("lda", &["num_topics", "feature_dim", "mini_batch_size"]),
    ("ntm", &["num_topics", "feature_dim"]),
    (
        "knn",
        &["k", "sample_size", "predictor_type", "feature_dim"],
    ),
    ("randomcutforest", &["feature_dim"]),
    ("ipinsights", &["num_entity_vectors", "vector_dim"]),
    ("blazingtext", &["mode"]),
    (
        "forecasting-deepar",
        &["context_length", "epochs", "prediction_length", "time_freq"],
    ),
    (
        "image-classification",
        &["num_classes", "num_training_samples"],
    ),
    ("object-detection", &["num_classes", "num_training_samples"]),
    (
        "semantic-segmentation",
        &["num_classes", "num_training_samples"],
    ),
    ("object2vec", &["enc0_max_seq_len", "enc0_vocab_size"]),
    ("seq2seq", &[]),
];

/// The part of an image's URI that names the repository, and the account that it belongs to.
fn parts(image: &str) -> Option<(&str, &str)> {
    let (account, rest) = image.split_once(".dkr.ecr.")?;
    let repository = rest.split_once('/')?.1;
    let name = repository.split([':', '@']).next()?;
    Some((account, name))
}

/// The built-in algorithm that an image is, and the hyperparameters that it needs.
pub(super) fn of_image(image: &str) -> Option<(&'static str, &'static [&'static str])> {
    let (_, repository) = parts(image)?;
    let known = ALGORITHMS.iter().find(|(name, _)| *name == repository);
    known.map(|(name, needs)| (*name, *needs))
}

/// Reports hyperparameters that a built-in algorithm needs and a body does not give. An image of the
/// role's own account is the user's, and a script of one's own reads what it likes.
pub(super) fn check(body: &Value, findings: &mut Vec<Finding>) {
    let image = body
        .pointer("/AlgorithmSpecification/TrainingImage")
        .and_then(Value::as_str);
    let Some((image, (name, needs))) = image.and_then(|image| Some((image, of_image(image)?)))
    else {
        return;
    };
    let role = body.get("RoleArn").and_then(Value::as_str);
    let account = role.and_then(|role| role.split(':').nth(4));
    let given = body.get("HyperParameters").and_then(Value::as_object);
    let has = |key: &str| given.is_some_and(|given| given.contains_key(key));
    if account.is_some() && account == parts(image).map(|(owner, _)| owner)
        || has("sagemaker_program")
    {
        return;
    }
    let absent: Vec<&str> = needs.iter().copied().filter(|key| !has(key)).collect();
    if !absent.is_empty() {
        findings.push(
            found("algorithm-hyperparameters", "/HyperParameters")
                .says(format!(
                    "{name} needs {}: the job would fail at its start",
                    absent.join(", ")
                ))
                .fix(format!(
                    "add {} to HyperParameters, as text",
                    absent.join(", ")
                )),
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn missing(image: &str, hyper: &Value) -> usize {
        let mut findings = Vec::new();
        let body = json!({"AlgorithmSpecification": {"TrainingImage": image}, "HyperParameters": hyper,
            "RoleArn": "arn:aws:iam::111122223333:role/train"});
        check(&body, &mut findings);
        findings.len()
    }

    #[test]
    fn a_built_in_algorithm_is_told_by_its_image() {
        let of_aws = "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:1.7-1";
        assert_eq!(
            missing(of_aws, &json!({"objective": "reg:squarederror"})),
            1
        );
        assert_eq!(missing(of_aws, &json!({"num_round": "10"})), 0);
        assert_eq!(
            missing(of_aws, &json!({"sagemaker_program": "train.py"})),
            0
        );
        let own = "111122223333.dkr.ecr.us-east-1.amazonaws.com/kmeans:1";
        assert_eq!(missing(own, &json!({})), 0);
        assert_eq!(
            missing(
                "111122223333.dkr.ecr.us-east-1.amazonaws.com/my-xgboost:1",
                &json!({})
            ),
            0
        );
    }
}
