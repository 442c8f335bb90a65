//! What is said of failures, from what was seen of them.

use chrono::TimeDelta;

use super::*;
use crate::catalog;

fn line(second: i64, host: &str, message: &str) -> LogLine {
    LogLine {
        at: DateTime::UNIX_EPOCH + TimeDelta::seconds(second),
        stream: format!("bakeoff-x-1/{host}-1790000000"),
        message: message.to_owned(),
    }
}

fn evidence<'a>(reason: Option<&'a str>, lines: &'a [LogLine]) -> Evidence<'a> {
    Evidence {
        failure_reason: reason,
        lines: Some(lines),
        transitions: &[],
        rules: &[],
        instance: catalog::find("ml.p4d.24xlarge"),
        profile: None,
    }
}

const SCRIPT_FAILED: &str =
    "AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"\"";

/// Five thousand lines of ranks that wait stand after the one that says why.
#[test]
fn a_cause_is_found_before_a_flood_of_others() {
    let mut lines = vec![line(
        1,
        "algo-2",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    )];
    lines.extend((0..5_000).map(|nth| {
        let host = format!("algo-{}", 1 + nth % 8);
        let message = "torch.distributed.DistBackendError: NCCL error in: ncclRemoteError: remote process exited";
        line(2 + nth / 100, &host, message)
    }));
    let found = diagnose(&evidence(Some(SCRIPT_FAILED), &lines));
    assert!(found.is_out_of_accelerator_memory(), "{:#?}", found.causes);
}

/// The process that reports a timeout is the victim of another, which ran out of memory.
#[test]
fn the_cause_comes_before_its_symptoms() {
    let lines = [
        line(
            10,
            "algo-1",
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, \
             NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800100 ms",
        ),
        line(
            12,
            "algo-2",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
    ];
    let profile = ProfileSpec {
        gradient_accumulation_steps: 4,
        ..ProfileSpec::of_batch(16, 8)
    };
    let found = diagnose(&Evidence {
        profile: Some(&profile),
        ..evidence(Some(SCRIPT_FAILED), &lines)
    });
    let names: Vec<&str> = found
        .causes
        .iter()
        .map(|one| one.signature.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "accelerator-memory-exhausted",
            "exception-raised",
            "collective-timeout",
            "script-failed"
        ]
    );
    assert_eq!(
        found.summary,
        "An accelerator ran out of memory: 2.00 GiB more did not fit. Lower the micro-batch from 2 to 1 and raise the \
         accumulation from 4 to 8: the global batch stays the same."
    );
    let clue = &found.causes.first().unwrap().clue;
    assert_eq!(
        (clue.seen_in, clue.at),
        (SeenIn::Log, Some(lines[1].at)),
        "{clue:?}"
    );
    assert_eq!(found.causes[0].patch.len(), 2);
}

#[test]
fn the_earliest_of_two_causes_is_first_and_each_is_named_once() {
    let lines = [
        line(1, "algo-1", "OSError: [Errno 28] No space left on device"),
        line(2, "algo-1", "ModuleNotFoundError: No module named 'apex'"),
        line(3, "algo-2", "OSError: [Errno 28] No space left on device"),
    ];
    let found = diagnose(&evidence(None, &lines));
    let causes: Vec<&str> = found.causes.iter().map(|one| one.cause.as_str()).collect();
    assert_eq!(
        causes,
        [
            "A disk is full",
            "The Python module apex is not installed in the image",
            "The script raised OSError: [Errno 28] No space left on device",
            "The script raised ModuleNotFoundError: No module named 'apex'"
        ]
    );
}

#[test]
fn what_sagemaker_says_comes_before_the_log() {
    let lines = [line(
        1,
        "algo-1",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    )];
    let reason = "ClientError: Artifact upload failed:Insufficient disk space";
    let found = diagnose(&evidence(Some(reason), &lines));
    assert_eq!(found.causes[0].signature, "model-does-not-pack");
    assert_eq!(found.causes[0].clue.text, reason);
    let reason = "AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"ModuleNotFoundError: No module named 'apex'\"\nCommand \"python\"";
    let found = diagnose(&evidence(Some(reason), &[]));
    assert_eq!(
        found.causes[0].clue.text,
        "ErrorMessage \"ModuleNotFoundError: No module named 'apex'\""
    );
}

#[test]
fn an_exception_nobody_knows_is_still_named() {
    let lines = [
        line(1, "algo-1", "Traceback (most recent call last):"),
        line(2, "algo-1", "  File \"train.py\", line 3, in <module>"),
        line(3, "algo-1", "ValueError: 3 labels for 4 images"),
    ];
    let found = diagnose(&evidence(Some(SCRIPT_FAILED), &lines));
    assert_eq!(
        found.summary,
        "The script raised ValueError: 3 labels for 4 images. Read the traceback above this line in its log."
    );
}

#[test]
fn a_container_without_a_line_did_not_start() {
    let reason = "InternalServerError: We encountered an internal error. Please try again.";
    let training = [Transition {
        status: "Training".to_owned(),
        started_at: DateTime::UNIX_EPOCH,
        ended_at: None,
        message: String::new(),
    }];
    let silent = Evidence {
        transitions: &training,
        ..evidence(Some(reason), &[])
    };
    assert_eq!(
        diagnose(&silent).causes[0].signature,
        "container-never-wrote"
    );
    let unread = Evidence {
        lines: None,
        ..silent
    };
    let found = diagnose(&unread);
    assert_eq!(found.causes[0].signature, "aws-internal-error");
    assert!(!found.is_log_read);
}

#[test]
fn rules_that_found_issues_are_named() {
    let rules = [RuleEvaluation {
        name: "VanishingGradient".to_owned(),
        status: "IssuesFound".to_owned(),
        details: "RuleEvaluationConditionMet: Evaluation of the rule VanishingGradient at step 500 resulted in the \
                  condition being met\n"
            .to_owned(),
        modified_at: None,
    }];
    let found = diagnose(&Evidence {
        rules: &rules,
        ..evidence(Some(SCRIPT_FAILED), &[])
    });
    assert_eq!(
        found.causes[0].cause,
        "The rule VanishingGradient found issues"
    );
    assert!(found.causes[0].clue.text.contains("at step 500"));
}

/// Logs of five small trainings on a CPU, as they were printed (JAX, Keras, XGBoost, LightGBM and
/// scikit-learn, November 2026).
const HEALTHY: [&str; 5] = [
    include_str!("healthy/jax_lm.txt"),
    include_str!("healthy/keras_cnn.txt"),
    include_str!("healthy/xgb.txt"),
    include_str!("healthy/lgb.txt"),
    include_str!("healthy/sk.txt"),
];

#[test]
fn nothing_is_found_in_healthy_logs() {
    let lines: Vec<&str> = HEALTHY.iter().flat_map(|log| log.lines()).collect();
    assert!(lines.len() > 200);
    for line in lines {
        let hits: Vec<&str> = signatures::in_log(line)
            .map(|hit| hit.signature.id.as_str())
            .collect();
        assert_eq!(hits, Vec::<&str>::new(), "{line}");
    }
}

#[test]
fn nothing_known_is_said_to_be_so() {
    let lines = [line(1, "algo-1", "bye")];
    assert!(
        diagnose(&evidence(None, &lines))
            .summary
            .ends_with("The last line of its log: bye")
    );
    assert_eq!(
        diagnose(&evidence(None, &[])).summary,
        "SageMaker gives no reason, and there is no log."
    );
    assert_eq!(
        diagnose(&evidence(Some("Odd"), &[])).summary,
        "No known cause matches: Odd"
    );
}

/// A script that tries larger batches until memory is full goes on; what ended it came an hour later.
#[test]
fn what_the_script_survived_stands_behind_what_ended_it() {
    let caught = line(
        0,
        "algo-1",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    );
    let steps = (1..=60).map(|minute| line(60 * minute, "algo-1", "step=10 loss=2.1"));
    let last = line(3_601, "algo-1", "KeyError: 'labels'");
    let whole: Vec<LogLine> = [caught.clone()].into_iter().chain(steps).collect();
    let first =
        |lines: &[LogLine]| diagnose(&evidence(Some(SCRIPT_FAILED), lines)).causes[0].clone();

    let ended = [&whole[..], std::slice::from_ref(&last)].concat();
    assert_eq!(first(&ended).signature, "exception-raised");

    // The same error again, at the end: that is the cause.
    let again = LogLine {
        at: last.at,
        ..caught.clone()
    };
    let ended = [&whole[..], std::slice::from_ref(&again)].concat();
    let found = first(&ended);
    assert_eq!(
        (found.signature.as_str(), found.clue.at),
        ("accelerator-memory-exhausted", Some(again.at))
    );

    // Another host's lines, few lines, and a silence that ends in a time-out prove nothing.
    let elsewhere: Vec<LogLine> = whole[1..]
        .iter()
        .map(|one| LogLine {
            stream: "bakeoff-x-1/algo-2-1790000000".to_owned(),
            ..one.clone()
        })
        .collect();
    let silence = [
        std::slice::from_ref(&caught),
        &elsewhere[..],
        std::slice::from_ref(&last),
    ]
    .concat();
    assert_eq!(first(&silence).signature, "accelerator-memory-exhausted");
    // So do those of the ranks that waited for the one that ran out of memory.
    let waited = (0..40).map(|frame| {
        let at = caught.at + TimeDelta::seconds(600 + frame % 3);
        LogLine {
            at,
            message: format!("frame #{frame}: c10d::ProcessGroupNCCL"),
            ..caught.clone()
        }
    });
    let hung: Vec<LogLine> = [caught.clone()].into_iter().chain(waited).collect();
    assert_eq!(first(&hung).signature, "accelerator-memory-exhausted");
    let quick: Vec<LogLine> = whole[..60]
        .iter()
        .map(|one| LogLine {
            at: caught.at,
            ..one.clone()
        })
        .collect();
    assert_eq!(first(&quick).signature, "accelerator-memory-exhausted");
}
