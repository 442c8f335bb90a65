//! Carries out the schedules that are due.

use chrono::{DateTime, Utc};

use super::{DueCall, TARGET};
use crate::account::refusal::Refusal;
use crate::account::setup::denied;
use crate::jobs::endpoints::SampledDurations;
use crate::jobs::model_packages::Call;
use crate::jobs::transform::not_found;
use crate::world::World;

impl World {
    /// Carries out what is scheduled by now, in order, each at its own time.
    pub(crate) fn run_schedules(&mut self, now: DateTime<Utc>) {
        while let Some(place) = self.schedules.first_due(now) {
            let Some(call) = self.schedules.call_of(place) else {
                return;
            };
            let done = self.perform(&call);
            self.schedules.heard(place, done);
        }
    }

    /// What a target does, under a role of its own.
    fn perform(&mut self, due: &DueCall) -> Result<(), Refusal> {
        let action = match due.target.strip_prefix(TARGET) {
            Some("deleteEndpoint") => "sagemaker:DeleteEndpoint",
            _ => "sagemaker:StopTransformJob",
        };
        if !self.setup.has_role() || self.setup.denies_role(action) {
            return Err(denied(action, "resource: *"));
        }
        if action == "sagemaker:StopTransformJob" {
            let (name, account) = (&due.input["TransformJobName"], &due.account);
            let mut own = self.transforms.iter_mut();
            let found = own.find(|job| job.name == *name && job.account == *account);
            return match found {
                Some(job) => job.stop(due.at).map(drop),
                None => Err(not_found()),
            };
        }
        let region = self.region.clone();
        let call = Call {
            account: &due.account,
            region: &region,
            body: &due.input,
            now: due.at,
        };
        let drawn = SampledDurations::nothing();
        self.endpoints.call("DeleteEndpoint", call, drawn).map(drop)
    }
}
