"""boto3, unmodified, against the simulated region: create, duplicate create, describe, list with paging, tags, stop,
GetMetricData, S3 put and get. Called by tests/it/boto.rs with the two addresses; prints how many checks held."""

import datetime
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

print(f"boto3: {held} checks held")
