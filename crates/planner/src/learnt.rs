//! Which hyperparameters change only how a training runs, and not what it learns: where its files are, how its data is
//! read, how often it reports, how it uses the hardware. All others may change what it learns.

/// Names of frameworks' own arguments that change only how a training runs, though a part of them says otherwise. Sources: Hugging
/// Face `TrainingArguments`, Lightning's `Trainer`, PyTorch's `DataLoader`.
const HOW_IT_RUNS: [&str; 20] = [
    "eval_accumulation_steps",
    "eval_batch_size",
    "eval_delay",
    "eval_on_start",
    "eval_steps",
    "eval_strategy",
    "evaluation_strategy",
    "gradient_checkpointing",
    "activation_checkpointing",
    "log_every_n_steps",
    "logging_steps",
    "logging_strategy",
    "logging_first_step",
    "num_workers",
    "per_device_eval_batch_size",
    "save_every_n_steps",
    "save_steps",
    "save_strategy",
    "val_check_interval",
    "validation_steps",
];
/// Parts of names that speak of files, data reading, reports and hardware.
const OF_RUNNING: [&str; 38] = [
    "attn",
    "backend",
    "bucket",
    "cache",
    "callback",
    "checkpoint",
    "compile",
    "cuda",
    "dataloader",
    "debug",
    "device",
    "devices",
    "dir",
    "disable",
    "fsdp",
    "hub",
    "kernel",
    "kernels",
    "log",
    "logger",
    "logging",
    "mlflow",
    "nccl",
    "nvme",
    "offload",
    "path",
    "persistent",
    "pin",
    "prefetch",
    "profiler",
    "report",
    "s3",
    "save",
    "tensorboard",
    "timeout",
    "tqdm",
    "wandb",
    "workers",
];
/// Parts of names that speak of what is learnt: one of them is enough.
const OF_LEARNING: [&str; 40] = [
    "accumulation",
    "alpha",
    "augment",
    "batch",
    "beta",
    "betas",
    "clip",
    "decay",
    "dropout",
    "epoch",
    "epochs",
    "eps",
    "epsilon",
    "freeze",
    "gamma",
    "grad",
    "gradient",
    "init",
    "label",
    "learning",
    "length",
    "lora",
    "loss",
    "lr",
    "max",
    "mixup",
    "momentum",
    "norm",
    "optim",
    "optimizer",
    "precision",
    "rank",
    "ratio",
    "regularization",
    "schedule",
    "scheduler",
    "seed",
    "steps",
    "warmup",
    "weight",
];

/// Whether a hyperparameter may change what is learnt.
pub(crate) fn may_change_learning(name: &str) -> bool {
    let name = name
        .trim_start_matches('-')
        .to_ascii_lowercase()
        .replace('-', "_");
    if HOW_IT_RUNS.contains(&name.as_str()) {
        return false;
    }
    let mut parts = name.split(['_', '.', '/', ':']);
    let speaks_of = |words: &[&str], part: &str| words.contains(&part);
    let is_of_learning = parts.clone().any(|part| speaks_of(&OF_LEARNING, part));
    is_of_learning || !parts.any(|part| speaks_of(&OF_RUNNING, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_changes_how_it_runs_is_told_from_what_changes_what_is_learnt() {
        for name in [
            "use_nvme_cache",
            "num_workers",
            "dataloader_num_workers",
            "--dataloader-pin-memory",
            "save_steps",
            "save_total_limit",
            "logging_steps",
            "report_to",
            "output_dir",
            "ddp_backend",
            "ddp_bucket_cap_mb",
            "torch_compile",
            "attn_implementation",
            "gradient_checkpointing",
            "per_device_eval_batch_size",
            "prefetch_factor",
            "wandb.project",
            "fsdp_cpu_ram_efficient_loading",
        ] {
            assert!(!may_change_learning(name), "{name}");
        }
        for name in [
            "learning_rate",
            "lr",
            "weight_decay",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "max_grad_norm",
            "seed",
            "lr_scheduler_type",
            "warmup_ratio",
            "optim",
            "num_train_epochs",
            "max_steps",
            "lora_r",
            "lora_alpha",
            "label_smoothing_factor",
            "dropout",
            "adam_beta1",
            "max_seq_length",
            "temperature",
            "my_own_flag",
            "packing",
            "checkpoint_loss_weight",
            "cache_batch_size",
        ] {
            assert!(may_change_learning(name), "{name}");
        }
    }
}
