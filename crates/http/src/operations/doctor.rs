//! The checks of an installation: parses what is to be looked at, and renders what was found.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::catalog;
use bakeoff_domain::doctor::{CheckScope, S3Place, S3Use, examine, is_ok, job};
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::sagemaker::image::ImageUri;
use bakeoff_domain::spec::PurchaseOption;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::Params;
use crate::plumbing::page::parameter;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::doctor::{CheckView, Checkup};
use bakeoff_service::app::{App, Place};
use bakeoff_service::use_cases::doctor;
use bakeoff_store::experiments::lists::{ExperimentFilter, PageOf};

/// Each costs some calls to AWS.
const NAMED_MAX: usize = 10;
const LENGTH_MAX: usize = 1024;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DoctorParams {
    /// Region; the usual one when absent.
    region: Option<String>,
    /// Execution role of the jobs.
    role_arn: Option<String>,
    /// Training image.
    image: Option<String>,
    /// Prefixes that jobs read; may be repeated.
    #[serde(default)]
    input_s3_uri: Vec<String>,
    /// Prefixes that jobs write their output to; may be repeated.
    #[serde(default)]
    output_s3_uri: Vec<String>,
    /// Prefixes of checkpoints, which jobs write and are restored from; may be repeated.
    #[serde(default)]
    checkpoint_s3_uri: Vec<String>,
    /// Types that are to be used, all when absent; may be repeated.
    #[serde(default)]
    instance_type: Vec<String>,
    /// Instances that are to be used at once; 1 when absent.
    instance_count: Option<u32>,
    /// `on_demand` or `spot`; on demand when absent. May be repeated.
    #[serde(default)]
    purchase_option: Vec<PurchaseOption>,
    /// SageMaker's MaxRuntimeInSeconds of the jobs, which a policy may limit; an hour when absent.
    max_runtime_seconds: Option<u32>,
    /// The type of the job that proves everything; the cheapest that may run when absent.
    job_instance_type: Option<String>,
}

/// Check the installation
///
/// Looks at what a first job needs: database, clock, credentials, role, buckets, image, quotas, rights,
/// prices. Nothing is changed, and nothing is started. With nothing named, it looks at what the project's
/// newest experiment in the region uses. Requires the editor role, because it calls AWS.
#[utoipa::path(get, path = "/v1/doctor", operation_id = "checkInstallation", tag = "operations", params(DoctorParams),
    responses((status = 200, description = "Each check, with what mends it", body = Checkup), Problems))]
pub(crate) async fn check(
    State(app): State<App>,
    Editor(caller): Editor,
    Params(params): Params<DoctorParams>,
) -> Result<Json<Checkup>, Problem> {
    let place = place(&app, params.region.as_deref())?;
    let job_type = params.job_instance_type.clone();
    let named = named(&place.region, params)?;
    let usual = if named.names_nothing() {
        usual(&app, caller, &place.region).await?
    } else {
        None
    };
    let (of_experiment, wanted) = usual.map_or((None, named), |(id, usual)| (Some(id), usual));
    let found = doctor::look(&app, &place, caller.project, &wanted).await?;
    let checks = examine(&wanted, &found);
    let job = found
        .at_aws
        .as_ref()
        .and_then(|aws| job::experiment(&wanted, aws, &found.prices, job_type.as_deref()));
    Ok(Json(Checkup {
        region: place.region,
        of_experiment,
        ok: is_ok(&checks),
        checks: checks.into_iter().map(CheckView::from).collect(),
        job,
        as_of: app.clock.now(),
    }))
}

fn place(app: &App, region: Option<&str>) -> Result<Place, Problem> {
    let region = region.unwrap_or(app.settings.home());
    app.places.get(region).cloned().ok_or_else(|| {
        let served = app.settings.regions.join(", ");
        parameter(
            "region",
            format!(
                "this service does not serve it; it serves {served} (`bakeoff serve --region`)"
            ),
        )
    })
}

fn named(region: &str, params: DoctorParams) -> Result<CheckScope, Problem> {
    let lists = [
        ("input_s3_uri", &params.input_s3_uri),
        ("output_s3_uri", &params.output_s3_uri),
        ("checkpoint_s3_uri", &params.checkpoint_s3_uri),
        ("instance_type", &params.instance_type),
    ];
    for (name, list) in lists {
        if list.len() > NAMED_MAX {
            return Err(parameter(name, format!("at most {NAMED_MAX} may be named")));
        }
    }
    let texts = [("role_arn", &params.role_arn), ("image", &params.image)];
    for (name, text) in texts {
        if text.as_ref().is_some_and(|text| text.len() > LENGTH_MAX) {
            return Err(parameter(name, format!("at most {LENGTH_MAX} characters")));
        }
    }
    if let Some(arn) = params.role_arn.as_deref()
        && !(arn.starts_with("arn:") && arn.contains(":role/"))
    {
        let detail = format!("`{arn}` is not a role such as arn:aws:iam::111122223333:role/name");
        return Err(parameter("role_arn", detail));
    }
    let types = params.instance_type.iter().chain(&params.job_instance_type);
    for kind in types {
        if catalog::find(kind).is_none() {
            let detail = format!("`{kind}` is not in the catalog; see GET /v1/instance-types");
            return Err(parameter("instance_type", detail));
        }
    }
    let mut places = Vec::new();
    for (name, uris, usage) in [
        ("input_s3_uri", params.input_s3_uri, S3Use::Input),
        ("output_s3_uri", params.output_s3_uri, S3Use::Output),
        (
            "checkpoint_s3_uri",
            params.checkpoint_s3_uri,
            S3Use::Checkpoints,
        ),
    ] {
        for uri in uris {
            let bucket = uri.strip_prefix("s3://").unwrap_or("").split('/').next();
            if bucket.is_none_or(str::is_empty) || uri.len() > LENGTH_MAX {
                return Err(parameter(
                    name,
                    "must be an S3 URI such as s3://bucket/prefix",
                ));
            }
            places.push(S3Place { uri, usage });
        }
    }
    Ok(CheckScope {
        region: region.to_owned(),
        role_arn: params.role_arn,
        image: params.image.map(ImageUri),
        places,
        instance_types: params.instance_type,
        instance_count: params.instance_count,
        purchase_options: params.purchase_option,
        max_runtime_seconds: params.max_runtime_seconds,
    })
}

/// Experiments looked at for one in the region.
const LOOKED_AT: i64 = 20;

/// What the project's newest experiment in the region uses.
async fn usual(
    app: &App,
    caller: Caller,
    region: &str,
) -> Result<Option<(ExperimentId, CheckScope)>, Problem> {
    let all = ExperimentFilter::default();
    let newest = app
        .store
        .experiments(caller.project, &all, PageOf::newest(LOOKED_AT))
        .await?;
    let of_region = newest
        .into_iter()
        .find(|one| one.resolved.spec().region == region && one.name != job::NAME);
    Ok(of_region.map(|one| {
        let (spec, workload) = (one.resolved.spec(), one.resolved.workload());
        (one.id, CheckScope::of(spec, Some(workload)))
    }))
}
