"""Prints the log of a job as an unmodified boto3 reads it: every stream, page by page, merged by time."""

import sys

import boto3

url, job = sys.argv[1:]
logs = boto3.client("logs", endpoint_url=url, region_name="us-east-1",
                    aws_access_key_id="simulated", aws_secret_access_key="simulated")
GROUP = "/aws/sagemaker/TrainingJobs"
lines = []
for page in logs.get_paginator("describe_log_streams").paginate(logGroupName=GROUP, logStreamNamePrefix=f"{job}/"):
    for stream in page["logStreams"]:
        name, token = stream["logStreamName"], None
        while True:
            following = {"nextToken": token} if token else {}
            answer = logs.get_log_events(logGroupName=GROUP, logStreamName=name, startFromHead=True, **following)
            lines += [(event["timestamp"], name, event["message"]) for event in answer["events"]]
            if answer["nextForwardToken"] == token:
                break
            token = answer["nextForwardToken"]
# A stable sort: lines of one moment stay in the order of their stream.
for _, _, message in sorted(lines, key=lambda line: line[:2]):
    print(message)
