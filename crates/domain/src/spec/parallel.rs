//! Distributed training libraries and the instance types they run on.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::catalog::InstanceType;

/// The library that distributes the training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ParallelLibrary {
    #[default]
    Deepspeed,
    Torchrun,
    /// SageMaker's distributed data parallel library.
    Smddp,
    /// SageMaker's model parallel library, version 1 (archived).
    SmpV1,
    /// SageMaker's model parallel library, version 2.
    SmpV2,
    /// Horovod, started through MPI.
    Horovod,
    /// TensorFlow's parameter servers.
    ParameterServer,
    /// TensorFlow's MultiWorkerMirroredStrategy.
    MultiWorkerMirrored,
    /// One process per instance.
    None,
}

impl ParallelLibrary {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deepspeed => "deepspeed",
            Self::Torchrun => "torchrun",
            Self::Smddp => "smddp",
            Self::SmpV1 => "smp_v1",
            Self::SmpV2 => "smp_v2",
            Self::Horovod => "horovod",
            Self::ParameterServer => "parameter_server",
            Self::MultiWorkerMirrored => "multi_worker_mirrored",
            Self::None => "none",
        }
    }
}

/// Types supported by SMP v1 (awsdocs, distributed-model-parallel-support).
const SMP_V1_TYPES: [&str; 5] = [
    "ml.g4dn.12xlarge",
    "ml.p3.16xlarge",
    "ml.p3dn.24xlarge",
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
];

/// Types supported by SMP v2 (awsdocs, distributed-model-parallel-support-v2).
const SMP_V2_TYPES: [&str; 5] = [
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "ml.p5.48xlarge",
    "ml.p5e.48xlarge",
    "ml.p5en.48xlarge",
];

/// Types supported by SMDDP (sagemaker SDK 2.257.7, SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES).
const SMDDP_TYPES: [&str; 4] = [
    "ml.p3.16xlarge",
    "ml.p3dn.24xlarge",
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
];

impl ParallelLibrary {
    /// The types listed in the library's documentation; `None` if there is no list.
    pub fn instance_types(self) -> Option<&'static [&'static str]> {
        match self {
            Self::SmpV1 => Some(&SMP_V1_TYPES),
            Self::SmpV2 => Some(&SMP_V2_TYPES),
            Self::Smddp => Some(&SMDDP_TYPES),
            Self::Torchrun
            | Self::Deepspeed
            | Self::Horovod
            | Self::ParameterServer
            | Self::MultiWorkerMirrored
            | Self::None => None,
        }
    }
}

/// Whether a library runs on a type according to its documentation; without a list, whether the
/// type has the accelerators for it.
pub fn runs_on(library: ParallelLibrary, kind: &InstanceType) -> bool {
    if let Some(listed) = library.instance_types() {
        return listed.contains(&kind.instance_type.as_str());
    }
    let is_trainium = kind.family().starts_with("trn");
    match library {
        ParallelLibrary::Torchrun => kind.accelerator_count > 0,
        ParallelLibrary::Deepspeed => kind.accelerator_count > 0 && !is_trainium,
        ParallelLibrary::Horovod
        | ParallelLibrary::ParameterServer
        | ParallelLibrary::MultiWorkerMirrored => !is_trainium,
        ParallelLibrary::SmpV1
        | ParallelLibrary::SmpV2
        | ParallelLibrary::Smddp
        | ParallelLibrary::None => true,
    }
}
