"""boto3, unmodified, against the simulated region: create, duplicate create, describe, list with paging, tags, stop,
GetMetricData, S3 put and get; then what a region does that is as unkind as AWS: pages cut short, tokens that expire, jobs that are not known
yet, times of the bill that are absent, spot that is never launched, metrics on two pages. Called by tests/it/clients.rs with the two addresses; prints how many checks held."""

import datetime
import json
import sys
import urllib.request

import boto3
from botocore.exceptions import ClientError

API, S3 = sys.argv[1:3]
OPTIONS = dict(region_name="us-east-1", aws_access_key_id="simulated", aws_secret_access_key="simulated")
sagemaker = boto3.client("sagemaker", endpoint_url=API, **OPTIONS)
cloudwatch = boto3.client("cloudwatch", endpoint_url=API, **OPTIONS)
s3 = boto3.client("s3", endpoint_url=S3, config=boto3.session.Config(s3={"addressing_style": "path"}), **OPTIONS)
held = 0


def check(what, condition):
    global held
    assert condition, what
    held += 1


def advance(seconds):
    request = urllib.request.Request(f"{API}/_sim/advance?seconds={seconds}", method="POST")
    urllib.request.urlopen(request).close()


def request(name, **changes):
    body = dict(
        TrainingJobName=name,
        RoleArn="arn:aws:iam::111122223333:role/train",
        AlgorithmSpecification={
            "TrainingImage": "1.dkr.ecr.us-east-1.amazonaws.com/t:1",
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": "tps", "Regex": "tokens_per_second=([0-9.]+)"}],
        },
        HyperParameters={
            "num_hidden_layers": "28", "hidden_size": "3584", "num_attention_heads": "28", "vocab_size": "152064",
            "max_seq_length": "2048", "per_device_train_batch_size": "4", "gradient_accumulation_steps": "2",
            "max_steps": "2000",
        },
        InputDataConfig=[{
            "ChannelName": "train",
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://tests/train/"}},
        }],
        OutputDataConfig={"S3OutputPath": "s3://tests/out"},
        ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        StoppingCondition={"MaxRuntimeInSeconds": 86400},
        Tags=[{"Key": "team", "Value": "research"}],
    )
    body.update(changes)
    return body


def refused(call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["Error"]["Message"]
    raise AssertionError("it was not refused")


arn = sagemaker.create_training_job(**request("job-0"))["TrainingJobArn"]
code, message = refused(sagemaker.create_training_job, **request("job-0"))
check("a name is taken once", code == "ResourceInUse" and message == (
    "Training job names must be unique within an AWS account and region, "
    f"and a training job with this name already exists ({arn})"))

code, message = refused(
    sagemaker.create_training_job, **request("job-x", StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60}))
check("max wait needs spot", code == "ValidationException" and "only supported when EnableManagedSpotTraining" in message)

code, message = refused(sagemaker.describe_training_job, TrainingJobName="nobody")
check("an unknown job", (code, message) == ("ValidationException", "Requested resource not found."))

for n in range(1, 8):
    sagemaker.create_training_job(**request(f"job-{n}"))
names, token, pages = [], {}, 0
while True:
    advance(2)  # two ListTrainingJobs a second, and no more
    page = sagemaker.list_training_jobs(NameContains="job-", MaxResults=3, SortBy="Name", **token)
    names += [job["TrainingJobName"] for job in page["TrainingJobSummaries"]]
    pages += 1
    if "NextToken" not in page:
        break
    token = {"NextToken": page["NextToken"]}
check("pages join without a gap", names == [f"job-{n}" for n in range(8)] and pages == 3)

check("tags", sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "research"}])

advance(3600)
job = sagemaker.describe_training_job(TrainingJobName="job-0")
assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("InProgress", "Training"), job
sagemaker.stop_training_job(TrainingJobName="job-0")
stopping = sagemaker.describe_training_job(TrainingJobName="job-0")["TrainingJobStatus"]
advance(600)
job = sagemaker.describe_training_job(TrainingJobName="job-0")
check("a stop passes through Stopping, and bills what ran", stopping == "Stopping" and job["TrainingJobStatus"] == "Stopped"
      and job["BillableTimeInSeconds"] == job["TrainingTimeInSeconds"] > 2000)

now = job["TrainingEndTime"]


def query(key, metric, dimension, value):
    return {"Id": key, "MetricStat": {"Period": 60, "Stat": "Average", "Metric": {
        "Namespace": "/aws/sagemaker/TrainingJobs", "MetricName": metric,
        "Dimensions": [{"Name": dimension, "Value": value}]}}}


data = cloudwatch.get_metric_data(
    StartTime=now - datetime.timedelta(hours=2), EndTime=now, ScanBy="TimestampAscending",
    MetricDataQueries=[query("speed", "tps", "TrainingJobName", "job-0"), query("gpu", "GPUUtilization", "Host", "job-0/algo-1")])
speed, gpu = data["MetricDataResults"]
check("metrics by the minute, GPU summed over eight", len(speed["Values"]) > 30 and min(speed["Values"]) > 1000
      and speed["Timestamps"] == sorted(speed["Timestamps"]) and 600 < max(gpu["Values"]) <= 800)

s3.put_object(Bucket="tests", Key="models/one.txt", Body=b"weights")
check("S3", s3.get_object(Bucket="tests", Key="models/one.txt")["Body"].read() == b"weights")



def unkind(**faults):
    """What goes wrong from now on; nothing, when nothing is said."""
    body = json.dumps(faults).encode()
    urllib.request.urlopen(urllib.request.Request(
        f"{API}/_sim/faults", body, {"content-type": "application/json"}, method="POST")).close()


def listed(prefix, **options):
    """Names and sizes of pages, as boto3's own paginator reads them."""
    names, sizes = [], []
    for page in sagemaker.get_paginator("list_training_jobs").paginate(NameContains=prefix, **options):
        advance(1)
        names += [job["TrainingJobName"] for job in page["TrainingJobSummaries"]]
        sizes.append(len(page["TrainingJobSummaries"]))
    return names, sizes


sagemaker.create_training_job(**request("limit-0", StoppingCondition={"MaxRuntimeInSeconds": 3600}))
sagemaker.create_training_job(**request("limit-1", StoppingCondition={"MaxRuntimeInSeconds": 3600}))
advance(1800)
sagemaker.stop_training_job(TrainingJobName="limit-0")
advance(7200)
stopped = sagemaker.describe_training_job(TrainingJobName="limit-0")
limited = sagemaker.describe_training_job(TrainingJobName="limit-1")
grace = [phase for phase in stopped["SecondaryStatusTransitions"] if phase["Status"] == "Stopping"][0]
check("a job that would have ended at its limit obeys a stop, and uses its whole grace",
      (stopped["SecondaryStatus"], limited["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
      and stopped["TrainingTimeInSeconds"] < 2200 < 3600 <= limited["TrainingTimeInSeconds"]
      and (grace["EndTime"] - grace["StartTime"]).total_seconds() == 120)

unkind(short_pages=0.8)
names, sizes = listed("job-", SortBy="Name", PaginationConfig={"PageSize": 4})
check("pages that are cut short join without a gap", names == [f"job-{n}" for n in range(8)] and min(sizes) < 4)
unkind(expired_page=1)
advance(5)
page = sagemaker.list_training_jobs(NameContains="job-", MaxResults=3)
code, message = refused(sagemaker.list_training_jobs, NameContains="job-", MaxResults=3, NextToken=page["NextToken"])
check("a token expires", (code, message) == ("ValidationException", "The pagination token has expired"))

unkind(lag=1, lag_seconds=100)
sagemaker.create_training_job(**request("late-0"))
unknown = refused(sagemaker.describe_training_job, TrainingJobName="late-0")[1]
taken = refused(sagemaker.create_training_job, **request("late-0"))[0]
nowhere = listed("late-")[0]
advance(100)
sagemaker.describe_training_job(TrainingJobName="late-0")
check("a job is not known at first, although its name is taken",
      (unknown, taken, nowhere, listed("late-")[0]) == ("Requested resource not found.", "ResourceInUse", [], ["late-0"]))

unkind(billing_late=1, billing_seconds=600)
sagemaker.create_training_job(**request("bill-0"))
unkind(billing_low=1, billing_seconds=600)
sagemaker.create_training_job(**request("bill-1"))
unkind()
advance(1800)
for name in ("bill-0", "bill-1"):
    sagemaker.stop_training_job(TrainingJobName=name)
advance(120 + 45)
absent = sagemaker.describe_training_job(TrainingJobName="bill-0")
low = sagemaker.describe_training_job(TrainingJobName="bill-1")
advance(600)
there = sagemaker.describe_training_job(TrainingJobName="bill-0")
right = sagemaker.describe_training_job(TrainingJobName="bill-1")
check("times of the bill are absent at first, or too low",
      (absent["TrainingJobStatus"], low["TrainingJobStatus"]) == ("Stopped", "Stopped")
      and "BillableTimeInSeconds" not in absent and there["BillableTimeInSeconds"] > 1000
      and low["BillableTimeInSeconds"] < right["BillableTimeInSeconds"])

unkind(no_spot_capacity=1, pending=1)
sagemaker.create_training_job(**request(
    "spot-0", EnableManagedSpotTraining=True, StoppingCondition={"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}))
unkind()
pending = sagemaker.describe_training_job(TrainingJobName="spot-0")["SecondaryStatus"]
advance(9000)
never = sagemaker.describe_training_job(TrainingJobName="spot-0")
check("spot that is never launched waits its time and bills nothing",
      (pending, never["TrainingJobStatus"], never["SecondaryStatus"]) == ("Pending", "Stopped", "MaxWaitTimeExceeded")
      and "TrainingStartTime" not in never and "BillableTimeInSeconds" not in never)


def speeds():
    """The speed of job-0, as boto3's paginator joins it, and the status codes on the way."""
    values, codes = [], []
    for page in cloudwatch.get_paginator("get_metric_data").paginate(
            StartTime=now - datetime.timedelta(hours=2), EndTime=now, ScanBy="TimestampAscending",
            MetricDataQueries=[query("speed", "tps", "TrainingJobName", "job-0")]):
        values += page["MetricDataResults"][0]["Values"]
        codes.append(page["MetricDataResults"][0]["StatusCode"])
    return values, codes


unkind(metric_pages=1)
check("metrics come on two pages, without a gap", speeds() == (speed["Values"], ["PartialData", "Complete"]))
unkind(failed_series=1)
check("a series may fail by itself", speeds() == ([], ["InternalError"]))
unkind(unknown_code=1)
check("a code that nobody knows", refused(sagemaker.describe_training_job, TrainingJobName="job-0")[0] == "SomethingNewException")
unkind(expired_credentials=1)
check("credentials that have expired", refused(sagemaker.describe_training_job, TrainingJobName="job-0")[0] == "ExpiredTokenException")
unkind()



def call_as(account):
    body = json.dumps({"account": account}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{API}/_sim/account", body, {"content-type": "application/json"})).close()


unkind()
sagemaker.create_training_job(**request("of-two"))
call_as("999988887777")
unknown = refused(sagemaker.describe_training_job, TrainingJobName="of-two")
passed = refused(sagemaker.create_training_job, **request("of-two"))
check("a role is passed only in its own account", passed[1] == "RoleArn: Cross-account pass role is not allowed.")
theirs = request("of-two", RoleArn="arn:aws:iam::999988887777:role/train")
other = sagemaker.create_training_job(**theirs)["TrainingJobArn"]
call_as("111122223333")
own = sagemaker.describe_training_job(TrainingJobName="of-two")["TrainingJobArn"]
check("another account's job of the same name is another job",
      unknown[1] == "Requested resource not found." and ":999988887777:" in other and ":111122223333:" in own)

group = "legal-de"
version = {"ModelPackageGroupName": group, "ClientToken": "once", "CustomerMetadataProperties": {"run": "r1"},
           "InferenceSpecification": {"Containers": [{"Image": "x", "ModelDataUrl": "s3://b/m.tar.gz"}],
                                      "SupportedContentTypes": ["application/json"], "SupportedResponseMIMETypes": ["application/json"]}}
check("a version needs its group", refused(sagemaker.create_model_package, **version)[1] == "The requested resource was not found")
sagemaker.create_model_package_group(ModelPackageGroupName=group)
check("a group is created once",
      refused(sagemaker.create_model_package_group, ModelPackageGroupName=group)[1].startswith("Model Package Group already exists"))
first = sagemaker.create_model_package(**version)["ModelPackageArn"]
again = sagemaker.create_model_package(**version)["ModelPackageArn"]
second = sagemaker.create_model_package(**{**version, "ClientToken": "twice"})["ModelPackageArn"]
check("a client token counts once", first == again and second.endswith(f"{group}/2"))
listed = [one["ModelPackageVersion"] for page in sagemaker.get_paginator("list_model_packages").paginate(
    ModelPackageGroupName=group, PaginationConfig={"PageSize": 1}) for one in page["ModelPackageSummaryList"]]
check("versions are listed by group, the newest first",
      listed == [2, 1] and sagemaker.list_model_packages()["ModelPackageSummaryList"] == [])
sagemaker.update_model_package(ModelPackageArn=first, ModelApprovalStatus="Approved", ApprovalDescription="fine")
described = sagemaker.describe_model_package(ModelPackageName=first)
back = refused(sagemaker.update_model_package, ModelPackageArn=first, ModelApprovalStatus="PendingManualApproval")
check("an approval stays", (described["ModelApprovalStatus"], described["ApprovalDescription"], back[0])
      == ("Approved", "fine", "ConflictException") and described["CustomerMetadataProperties"] == {"run": "r1"})

def processing(name, **changes):
    body = dict(
        ProcessingJobName=name, RoleArn="arn:aws:iam::111122223333:role/prep",
        AppSpecification={"ImageUri": "prep:1", "ContainerEntrypoint": ["python3", "/opt/ml/processing/input/code/prepare.py"]},
        ProcessingInputs=[{"InputName": "raw", "AppManaged": False, "S3Input": {
            "S3Uri": "s3://tests/train/", "LocalPath": "/opt/ml/processing/input/raw", "S3DataType": "S3Prefix", "S3InputMode": "File"}}],
        ProcessingOutputConfig={"Outputs": [{"OutputName": "train", "S3Output": {
            "S3Uri": f"s3://tests/{name}/train", "LocalPath": "/opt/ml/processing/output/train", "S3UploadMode": "EndOfJob"}}]},
        ProcessingResources={"ClusterConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30}},
        Environment={"A": "1"}, Tags=[{"Key": "team", "Value": "research"}])
    body.update(changes)
    return body


cluster = {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30}
check("a type that does not process is refused with those that do", "ml.m5.xlarge" in refused(
    sagemaker.create_processing_job, **processing("p5", ProcessingResources={"ClusterConfig": cluster}))[1])
arn = sagemaker.create_processing_job(**processing("prep"))["ProcessingJobArn"]
check("a processing job is created once", refused(sagemaker.create_processing_job, **processing("prep"))[0] == "ResourceInUse")
seen = sagemaker.describe_processing_job(ProcessingJobName="prep")
check("it is described", (seen["ProcessingJobStatus"], seen["Environment"], "ProcessingStartTime" in seen) == ("InProgress", {"A": "1"}, False))
check("its tags are its own", sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "research"}])
missing = refused(sagemaker.describe_processing_job, ProcessingJobName="nobody")
check("one that is not there is refused as AWS does", missing[0] == "ValidationException" and missing[1].startswith("Could not find requested job"))
advance(3600)
sagemaker.create_processing_job(**processing("prep-2"))
names = [one["ProcessingJobName"] for page in sagemaker.get_paginator("list_processing_jobs").paginate(
    NameContains="prep", PaginationConfig={"PageSize": 1}) for one in page["ProcessingJobSummaries"]]
check("they are listed, the oldest first", names == ["prep", "prep-2"])
seen = sagemaker.describe_processing_job(ProcessingJobName="prep")
ran = (seen["ProcessingEndTime"] - seen["ProcessingStartTime"]).total_seconds()
check("it ends with a message and its outputs", seen["ProcessingJobStatus"] == "Completed" and 0 < ran < 3600
      and json.loads(seen["ExitMessage"])["train"]["records"] > 0
      and s3.list_objects_v2(Bucket="tests", Prefix="prep/train/")["KeyCount"] == 1)
check("one that is over is not stopped", "in status Completed" in refused(sagemaker.stop_processing_job, ProcessingJobName="prep")[1])
sagemaker.stop_processing_job(ProcessingJobName="prep-2")
check("one that runs is", sagemaker.describe_processing_job(ProcessingJobName="prep-2")["ProcessingJobStatus"] == "Stopping")
sagemaker.delete_processing_job(ProcessingJobName="prep")
check("a deleted one frees its name", sagemaker.create_processing_job(**processing("prep"))["ProcessingJobArn"] == arn)


def tuning(name, **changes):
    config = {"Strategy": "Random", "HyperParameterTuningJobObjective": {"MetricName": "loss", "Type": "Minimize"},
              "ResourceLimits": {"MaxNumberOfTrainingJobs": 3, "MaxParallelTrainingJobs": 2}, "RandomSeed": 7,
              "ParameterRanges": {"ContinuousParameterRanges": [
                  {"Name": "lr", "MinValue": "1e-5", "MaxValue": "1e-3", "ScalingType": "Logarithmic"}]}}
    config.update(changes)
    return dict(HyperParameterTuningJobName=name, HyperParameterTuningJobConfig=config, TrainingJobDefinition={
        "AlgorithmSpecification": {"TrainingImage": "t:1", "TrainingInputMode": "File", "MetricDefinitions": [{"Name": "loss", "Regex": "l=(.*)"}]},
        "RoleArn": "arn:aws:iam::111122223333:role/r", "OutputDataConfig": {"S3OutputPath": "s3://tests/tuned"},
        "HyperParameterTuningResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600}})


check("a tuning job's name has 32 characters", refused(sagemaker.create_hyper_parameter_tuning_job, **tuning("x" * 33))[0] is not None)
check("Hyperband stops by itself", "Hyperband" in refused(sagemaker.create_hyper_parameter_tuning_job, **tuning(
    "band", Strategy="Hyperband", TrainingJobEarlyStoppingType="Auto"))[1])
sagemaker.create_hyper_parameter_tuning_job(**tuning("tune"))
check("a tuning job is created once", refused(sagemaker.create_hyper_parameter_tuning_job, **tuning("tune"))[0] == "ResourceInUse")
missing = refused(sagemaker.describe_hyper_parameter_tuning_job, HyperParameterTuningJobName="nobody")
check("one that is not there has a code of its own", missing[0] == "ResourceNotFound" and "can't find a tuning job" in missing[1])
advance(7200)
seen = sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName="tune")
trials = [one for page in sagemaker.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job").paginate(
    HyperParameterTuningJobName="tune", PaginationConfig={"PageSize": 2}) for one in page["TrainingJobSummaries"]]
best = [one["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] for one in trials]
check("its trials have searched hyperparameters and an objective",
      seen["HyperParameterTuningJobStatus"] == "Completed" and len(best) == 3 and all("lr" in one["TunedHyperParameters"] for one in trials))
check("a trial is described as a training job",
      sagemaker.describe_training_job(TrainingJobName=trials[0]["TrainingJobName"])["BillableTimeInSeconds"] > 0)

model = dict(ModelName="m", ExecutionRoleArn="arn:aws:iam::111122223333:role/r", PrimaryContainer={"Image": "s:1", "ModelDataUrl": "s3://tests/m.tar.gz"})
sagemaker.create_model(**model)
check("a model is created once", refused(sagemaker.create_model, **model)[1].startswith("Cannot create already existing model"))
transform = dict(TransformJobName="t", ModelName="m", TransformInput={"DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://tests/train/"}}},
                 TransformOutput={"S3OutputPath": "s3://tests/transformed"}, TransformResources={"InstanceType": "ml.g5.xlarge", "InstanceCount": 1})
check("payloads are bounded", "100 MB" in refused(
    sagemaker.create_transform_job, **{**transform, "MaxConcurrentTransforms": 20, "MaxPayloadInMB": 6})[1])
sagemaker.create_transform_job(**transform)
check("a transform job is created once", refused(sagemaker.create_transform_job, **transform)[0] == "ResourceInUse")
advance(3600)
seen = sagemaker.describe_transform_job(TransformJobName="t")
check("it ends with its output", seen["TransformJobStatus"] == "Completed"
      and s3.list_objects_v2(Bucket="tests", Prefix="transformed/")["KeyCount"] == 1)
check("one that is over is not stopped", "in status Completed" in refused(sagemaker.stop_transform_job, TransformJobName="t")[1])

variant = {"VariantName": "AllTraffic", "ModelName": "m", "InstanceType": "ml.g5.xlarge", "InitialInstanceCount": 1}
check("a type with disks of its own takes no volume", "VolumeSizeInGB" in refused(
    sagemaker.create_endpoint_config, EndpointConfigName="c", ProductionVariants=[{**variant, "VolumeSizeInGB": 50}])[1])
check("a configuration needs its model", refused(sagemaker.create_endpoint_config, EndpointConfigName="c", ProductionVariants=[
    {**variant, "ModelName": "none"}])[1].startswith("Could not find model"))
sagemaker.create_endpoint_config(EndpointConfigName="c", ProductionVariants=[variant])
check("an endpoint needs its configuration", refused(
    sagemaker.create_endpoint, EndpointName="e", EndpointConfigName="none")[1].startswith("Could not find endpoint configuration"))
arn = sagemaker.create_endpoint(EndpointName="e", EndpointConfigName="c", Tags=[{"Key": "team", "Value": "research"}])["EndpointArn"]
check("an endpoint is created once, whatever the case of its name", refused(
    sagemaker.create_endpoint, EndpointName="E", EndpointConfigName="c")[1].startswith("Cannot create already existing endpoint"))
check("one that is being created is not deleted", refused(
    sagemaker.delete_endpoint, EndpointName="e")[1].startswith("Cannot update in-progress endpoint"))
advance(900)
check("it serves, with its tags", sagemaker.describe_endpoint(EndpointName="e")["EndpointStatus"] == "InService"
      and sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "research"}])
runtime = boto3.client("sagemaker-runtime", endpoint_url=API, **OPTIONS)
answer = json.loads(runtime.invoke_endpoint(EndpointName="e", ContentType="application/json", Body=b"{}")["Body"].read())
check("it answers", "generated_text" in answer)
sagemaker.update_endpoint(EndpointName="e", EndpointConfigName="c")
check("it is updated", sagemaker.describe_endpoint(EndpointName="e")["EndpointStatus"] == "Updating")
advance(900)
check("it is listed", [one["EndpointName"] for one in sagemaker.list_endpoints(NameContains="e")["Endpoints"]] == ["e"])
sagemaker.delete_endpoint(EndpointName="e")
check("it is being deleted", sagemaker.describe_endpoint(EndpointName="e")["EndpointStatus"] == "Deleting")
advance(300)
check("and then it is gone", refused(sagemaker.describe_endpoint, EndpointName="e")[1].startswith("Could not find endpoint"))
print(f"boto3: {held} checks held")
