//! Layouts as their writers make them, whole and cut; and what must never be deleted.

use proptest::prelude::*;

use super::keep::{Fate, KeptFor, Protected, deletion_order, fates};
use super::*;

fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
}

fn now() -> DateTime<Utc> {
    at(100_000)
}

fn objects(step: u64, files: &[String]) -> Vec<StoredObject> {
    let object = |key: &String| StoredObject {
        key: key.clone(),
        bytes: 1_000,
        written_at: at(i64::try_from(step).unwrap()),
    };
    files.iter().map(object).collect()
}

/// Files of a checkpoint on eight ranks, by each writer.
fn files(writer: Writer, step: u64) -> Vec<String> {
    let ranks = 0..8;
    match writer {
        Writer::HuggingFace => {
            let fixed = [
                "model.safetensors.index.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "optimizer.pt",
                "scheduler.pt",
                "trainer_state.json",
                "training_args.bin",
                "config.json",
            ];
            let fixed = fixed.map(|name| format!("checkpoint-{step}/{name}"));
            let states = ranks.map(|rank| format!("checkpoint-{step}/rng_state_{rank}.pth"));
            fixed.into_iter().chain(states).collect()
        }
        Writer::DeepSpeed => ranks
            .flat_map(|rank| {
                [
                    format!("global_step{step}/zero_pp_rank_{rank}_mp_rank_00_model_states.pt"),
                    format!(
                        "global_step{step}/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
                    ),
                ]
            })
            .collect(),
        Writer::Lightning => vec![format!("epoch=1-step={step}.ckpt")],
        Writer::Distributed => {
            let fixed = [".metadata", "common.pt", "metadata.json"];
            let fixed = fixed.map(|name| format!("iter_{step:07}/{name}"));
            let data = ranks.flat_map(|rank| {
                (0..2).map(move |part| format!("iter_{step:07}/__{rank}_{part}.distcp"))
            });
            fixed.into_iter().chain(data).collect()
        }
        Writer::Composer => ranks
            .map(|rank| format!("ep0-ba{step}-rank{rank}.pt"))
            .collect(),
        Writer::Megatron => ranks
            .flat_map(|rank| {
                ["model_optim_rng.pt", "distrib_optim.pt"]
                    .map(|name| format!("iter_{step:07}/mp_rank_{rank:02}/{name}"))
            })
            .collect(),
        Writer::TensorFlow => vec![
            format!("ckpt-{step}.index"),
            format!("ckpt-{step}.data-00000-of-00002"),
            format!("ckpt-{step}.data-00001-of-00002"),
        ],
        Writer::Accelerate => {
            let fixed = ["model.safetensors", "optimizer.bin", "scheduler.bin"];
            let fixed = fixed.map(|name| format!("step_{step}/{name}"));
            let states = ranks.map(|rank| format!("step_{step}/random_states_{rank}.pkl"));
            fixed.into_iter().chain(states).collect()
        }
        Writer::Orbax => [
            "_CHECKPOINT_METADATA",
            "default/_METADATA",
            "commit_success.txt",
        ]
        .map(|name| format!("{step}/{name}"))
        .into(),
        Writer::Unknown => vec!["weights.bin".to_owned()],
    }
}

const WRITERS: [Writer; 8] = [
    Writer::HuggingFace,
    Writer::DeepSpeed,
    Writer::Lightning,
    Writer::Distributed,
    Writer::Composer,
    Writer::Megatron,
    Writer::TensorFlow,
    Writer::Accelerate,
];

fn known() -> CheckpointFacts {
    CheckpointFacts {
        ranks: Some(8),
        trackers: BTreeMap::new(),
    }
}

/// Steps are ordered as numbers: 500 is before 1000.
#[test]
fn each_layout_is_known_whole() {
    for writer in WRITERS {
        let mut all = objects(1000, &files(writer, 1000));
        all.extend(objects(500, &files(writer, 500)));
        let found = find(&all, &known(), now());
        let seen: Vec<(Option<u64>, Writer, bool)> = found
            .iter()
            .map(|one| (one.step, one.writer, one.is_complete()))
            .collect();
        assert_eq!(
            seen,
            [(Some(500), writer, true), (Some(1000), writer, true)],
            "{found:#?}"
        );
        assert_eq!(found[0].bytes, 1_000 * files(writer, 500).len() as u64);
    }
}

/// With a whole one before it, one that lacks any object is told; being written, while it is new.
#[test]
fn each_layout_is_known_cut_at_every_object() {
    for writer in WRITERS {
        let whole = objects(500, &files(writer, 500));
        let later = files(writer, 1000);
        for cut in 0..later.len() {
            let mut left = later.clone();
            left.remove(cut);
            if left.is_empty() {
                continue;
            }
            let all: Vec<StoredObject> =
                whole.iter().cloned().chain(objects(1000, &left)).collect();
            let found = find(&all, &known(), now());
            let last = found.last().unwrap();
            assert!(
                matches!(&last.wholeness, Completeness::Incomplete { .. }),
                "{writer:?} without {}: {last:?}",
                later[cut]
            );
            let early = find(&all, &known(), at(1001));
            assert_eq!(early.last().unwrap().wholeness, Completeness::BeingWritten);
        }
    }
}

/// A later run on fewer accelerators, one that saves weights only, and one without ZeRO.
#[test]
fn what_is_right_in_another_form_is_whole() {
    let mut all = objects(500, &files(Writer::HuggingFace, 500));
    let fewer = files(Writer::HuggingFace, 1000);
    let fewer: Vec<String> = fewer
        .into_iter()
        .filter(|file| !file.contains("rng_state_7"))
        .collect();
    all.extend(objects(1000, &fewer));
    let on_seven = CheckpointFacts {
        ranks: Some(7),
        ..known()
    };
    assert!(
        find(&all, &on_seven, now())
            .iter()
            .all(Checkpoint::is_complete)
    );
    for files in [
        &[
            "checkpoint-5/model.safetensors",
            "checkpoint-5/trainer_state.json",
        ][..],
        &["global_step5/mp_rank_00_model_states.pt"],
    ] {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        assert!(
            find(&objects(5, &files), &known(), now())[0].is_complete(),
            "{files:?}"
        );
    }
}

/// Rank 1 is not step 1.
#[test]
fn a_number_that_is_a_step_elsewhere_is_no_difference() {
    let mut all = objects(1, &files(Writer::HuggingFace, 1));
    all.extend(objects(20, &files(Writer::HuggingFace, 20)));
    let found = find(&all, &known(), now());
    assert!(found.iter().all(Checkpoint::is_complete), "{found:#?}");
}

/// The first one has none before it: what its layout and the number of ranks ask for is still missed.
#[test]
fn a_first_checkpoint_is_judged_by_its_layout() {
    let essential = |writer: Writer, name: &str| match writer {
        Writer::HuggingFace => {
            !name.ends_with("training_args.bin") && !name.ends_with("config.json")
        }
        // Which ranks write data is in a pickle.
        Writer::Distributed => name.ends_with(".metadata"),
        // A script need not have a scheduler.
        Writer::Accelerate => !name.ends_with("scheduler.bin"),
        _ => true,
    };
    for writer in WRITERS {
        let all = files(writer, 500);
        for (cut, name) in all.iter().enumerate() {
            let mut left = all.clone();
            left.remove(cut);
            if left.is_empty() || !essential(writer, name) {
                continue;
            }
            let found = find(&objects(500, &left), &known(), now());
            assert!(!found[0].is_complete(), "{writer:?} without {name}");
        }
    }
}

#[test]
fn an_upload_under_way_is_not_whole() {
    let mut keys = files(Writer::HuggingFace, 500);
    keys.push("checkpoint-500/optimizer.pt.sagemaker-uploading".to_owned());
    keys.push("checkpoint-500/optimizer.pt.sagemaker-uploaded".to_owned());
    let found = find(&objects(500, &keys), &known(), now());
    assert_eq!(found.len(), 1);
    let Completeness::Incomplete { missing } = &found[0].wholeness else {
        panic!("{found:?}");
    };
    assert!(missing.contains("sagemaker-uploading"), "{missing}");
}

fn series(steps: &[u64]) -> Vec<Checkpoint> {
    let all: Vec<StoredObject> = steps
        .iter()
        .flat_map(|step| objects(*step, &files(Writer::DeepSpeed, *step)))
        .collect();
    find(&all, &known(), now())
}

/// Of two runs below one prefix, each tracker speaks of its own folder.
#[test]
fn trackers_speak_of_their_folder() {
    let mut known = known();
    for (key, text) in [
        ("run1/latest", "global_step300\n"),
        ("mega/latest_checkpointed_iteration.txt", "700"),
        ("latest-rank0.pt.symlink", "ep0-ba100-rank0.pt"),
    ] {
        assert!(CheckpointFacts::is_tracker(key));
        known.trackers.insert(key.into(), text.into());
    }
    assert!(known.tracks("run1/global_step300", Some(300)));
    assert!(!known.tracks("run2/global_step300", Some(300)));
    assert!(known.tracks("mega/iter_0000700", Some(700)));
    assert!(known.tracks("ep0-ba100", Some(100)));
    assert!(!known.tracks("ep0-ba200", Some(200)));
}

#[test]
fn the_newest_are_kept_and_what_somebody_needs() {
    let all = series(&[100, 200, 300, 400, 500]);
    let mut known = known();
    known
        .trackers
        .insert("latest".into(), "global_step300\n".into());
    let protected = Protected {
        best: ["global_step100".to_owned()].into(),
    };
    assert_eq!(
        fates(&all, 2, &known, &protected),
        [
            Fate::Kept(KeptFor::Best),
            Fate::Deleted,
            Fate::Kept(KeptFor::Tracked),
            Fate::Kept(KeptFor::Newest),
            Fate::Kept(KeptFor::Newest),
        ]
    );
}

/// Two trainers, and one state in two folders: nothing goes that is the newest of its own.
#[test]
fn each_folder_counts_on_its_own() {
    let key = |key: &str| key.to_owned();
    let mut all = Vec::new();
    for run in ["a", "b"] {
        for step in [100, 200] {
            let files = files(Writer::HuggingFace, step);
            let files: Vec<String> = files.iter().map(|file| format!("{run}/{file}")).collect();
            let step = if run == "a" { step + 5_000 } else { step };
            all.extend(objects(step, &files));
        }
    }
    for part in ["model", "optimizer"] {
        let files =
            [".metadata", "__0_0.distcp"].map(|file| key(&format!("step_100/{part}/{file}")));
        all.extend(objects(100, &files));
    }
    let found = find(&all, &known(), now());
    let fates = fates(&found, 1, &known(), &Protected::default());
    let deleted: Vec<&str> = found
        .iter()
        .zip(&fates)
        .filter(|(_, fate)| **fate == Fate::Deleted)
        .map(|(one, _)| one.name.as_str())
        .collect();
    assert_eq!(deleted, ["b/checkpoint-100", "a/checkpoint-100"]);
}

/// What is deleted half is not whole, whatever is left of it.
#[test]
fn a_half_deleted_checkpoint_is_not_taken_for_whole() {
    for writer in WRITERS {
        let checkpoint = &find(&objects(500, &files(writer, 500)), &known(), now())[0];
        let order = deletion_order(checkpoint);
        for done in 1..order.len() {
            let found = find(&objects(500, &order[done..]), &known(), now());
            assert!(
                !found[0].is_complete(),
                "{writer:?} after {done}: {found:?}"
            );
        }
    }
}

proptest! {
    /// Whatever is there, and whatever is asked: the newest whole one, what is protected, what a tracker
    /// names, and what is newer than the newest whole one stay.
    #[test]
    fn what_must_not_be_deleted_is_not(
        steps in prop::collection::btree_set(1_u64..10_000, 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        keep in 0_usize..6,
        (best, tracked, has_last) in (0_usize..12, 0_usize..12, any::<bool>()),
    ) {
        let steps: Vec<u64> = steps.into_iter().collect();
        let mut all: Vec<StoredObject> = steps
            .iter()
            .flat_map(|step| objects(*step, &files(Writer::HuggingFace, *step)))
            .collect();
        for cut in cuts {
            if !all.is_empty() {
                let at = cut.index(all.len());
                all.remove(at);
            }
        }
        if has_last {
            all.extend(objects(0, &["last.ckpt".to_owned()]));
        }
        let found = find(&all, &known(), now());
        let name = |index: usize| found.get(index).map(|one| one.name.clone());
        let protected = Protected { best: name(best).into_iter().collect() };
        let mut known = known();
        if let Some(name) = name(tracked) {
            known.trackers.insert("latest".into(), name);
        }
        let fates = fates(&found, keep, &known, &protected);
        prop_assert_eq!(fates.len(), found.len());
        let newest = found.iter().rposition(|one| one.is_complete() && one.step.is_some());
        for (index, (one, fate)) in found.iter().zip(&fates).enumerate() {
            let is_needed = protected.best.contains(&one.name)
                || one.step.is_none()
                || known.tracks(&one.name, None)
                || newest.is_none_or(|newest| index >= newest);
            prop_assert!(!is_needed || *fate != Fate::Deleted, "{:?}", one);
        }
        let whole = found.iter().filter(|one| one.is_complete()).count();
        let kept_whole = found.iter().zip(&fates).filter(|(one, fate)| one.is_complete() && **fate != Fate::Deleted);
        prop_assert!(kept_whole.count() >= keep.max(1).min(whole));
    }
}

/// Three checkpoints of a writer, with the trackers that name the last.
fn three(writer: Writer) -> (Vec<StoredObject>, CheckpointFacts) {
    let trackers: BTreeMap<String, String> = match writer {
        Writer::DeepSpeed => [("latest".to_owned(), "global_step300".to_owned())].into(),
        Writer::Composer => (0..8)
            .map(|rank| {
                (
                    format!("latest-rank{rank}.pt.symlink"),
                    format!("ep0-ba300-rank{rank}.pt"),
                )
            })
            .collect(),
        _ => BTreeMap::new(),
    };
    let of_steps = [100, 200, 300]
        .into_iter()
        .flat_map(|step| objects(step, &files(writer, step)));
    let keys: Vec<String> = trackers.keys().cloned().collect();
    let all = of_steps.chain(objects(300, &keys)).collect();
    let known = CheckpointFacts {
        ranks: Some(8),
        trackers,
    };
    (all, known)
}

/// A copy's folder after so many of its objects.
fn listed(copy: &copy::Copy, copied: usize) -> Vec<StoredObject> {
    let keys = copy.objects.iter().take(copied).map(|one| &one.to);
    let trackers = copy.trackers.iter().map(|one| &one.key);
    let keys: Vec<String> = keys.chain(trackers).cloned().collect();
    objects(200, &keys)
}

/// Read as objects, the copy of any writer's checkpoint is whole, alone, and what its tracker names; cut
/// at any object, it is not done.
#[test]
fn a_copy_stands_alone_whichever_writer_made_it() {
    for writer in [
        Writer::HuggingFace,
        Writer::DeepSpeed,
        Writer::Lightning,
        Writer::Distributed,
        Writer::Composer,
    ] {
        let (all, known) = three(writer);
        let found = find(&all, &known, now());
        let chosen = found.iter().find(|one| one.step == Some(200)).unwrap();
        let copy = copy::of(chosen, &all);
        let whole = listed(&copy, copy.objects.len());
        assert!(copy.is_done(&whole), "{writer:?}");
        for cut in 0..copy.objects.len() {
            assert!(!copy.is_done(&listed(&copy, cut)), "{writer:?} at {cut}");
        }
        let trackers = copy.trackers.iter();
        let alone = CheckpointFacts {
            ranks: Some(8),
            trackers: trackers
                .map(|one| (one.key.clone(), one.text.clone()))
                .collect(),
        };
        let again = find(&whole, &alone, now());
        let of_step = again.iter().find(|one| one.step == Some(200)).unwrap();
        assert!(of_step.is_complete(), "{writer:?}: {of_step:?}");
        let is_alone = |one: &Checkpoint| one.step.is_none_or(|step| step == 200);
        assert!(again.iter().all(is_alone), "{writer:?}: {again:?}");
        let is_named = alone.tracks(&of_step.name, of_step.step);
        match writer {
            Writer::HuggingFace | Writer::Unknown => {}
            Writer::Lightning => assert!(again.iter().any(|one| one.name == "last.ckpt")),
            _ => assert!(is_named, "{writer:?}: {alone:?}"),
        }
    }
}

#[test]
fn a_better_interval_is_named_where_it_saves_dollars() {
    let usd = |cents: i64| crate::money::Usd(rust_decimal::Decimal::new(cents, 2));
    let day = 24 * 3_600;
    let rare = cost::interval_cost(usd(1_000), day, 86_400);
    assert_eq!(rare.lost_usd, usd(12_000));
    let best = cost::better_interval(usd(1_000), day, 86_400).unwrap();
    assert_eq!(best.interval_seconds, 3_600);
    assert!(best.total_usd() < usd(950), "{best:?}");
    assert_eq!(cost::better_interval(usd(1_000), day, 3_600), None);
    let often = cost::better_interval(usd(1_000), day, 60).unwrap();
    assert_eq!(
        often.interval_seconds, 3_600,
        "saving each minute stands still half the time"
    );
    assert_eq!(cost::better_interval(usd(10), 3_600, 86_400), None, "cents");
}

#[test]
fn an_interruption_costs_half_an_interval_and_at_most_a_whole_one() {
    let usd = |cents: i64| crate::money::Usd(rust_decimal::Decimal::new(cents, 2));
    let losses = cost::losses(usd(3_000), 2, Some(900));
    let of = |seconds: u32| {
        let one = losses.iter().find(|one| one.interval_seconds == seconds);
        one.map(|one| (one.expected_usd, one.most_usd))
    };
    assert_eq!(of(3_600), Some((usd(3_000), usd(6_000))));
    assert_eq!(of(900), Some((usd(750), usd(1_500))));
    assert!(losses.is_sorted_by_key(|one| one.interval_seconds));
    // The interval that was seen is that of whole ones of one series.
    let all: Vec<StoredObject> = [100, 130]
        .into_iter()
        .flat_map(|step| objects(step, &files(Writer::HuggingFace, step)))
        .collect();
    let found = find(&all, &CheckpointFacts::default(), now());
    assert_eq!(cost::seen_interval(&found), Some(1_800));
    assert_eq!(cost::seen_interval(&found[..1]), None);
    assert_eq!(cost::restore_warning(92_000_000_000), None);
    assert!(cost::restore_warning(93_000_000_000).is_some());
}
