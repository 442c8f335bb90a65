"""Runs moto, an independent imitation of AWS, until its input ends; prints its address. Its Model Registry is empty; for
the job that is named, it holds the log of two hosts and of a restart, longer than a page of CloudWatch Logs."""

import logging
import sys
import time

import boto3

try:
    from moto.server import ThreadedMotoServer
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit()

logging.getLogger("werkzeug").setLevel(logging.ERROR)
job, now = sys.argv[1], int(time.time() * 1000)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
url = f"http://{host}:{port}"
logs = boto3.client("logs", endpoint_url=url, region_name="us-east-1",
                    aws_access_key_id="simulated", aws_secret_access_key="simulated")
GROUP = "/aws/sagemaker/TrainingJobs"
logs.create_log_group(logGroupName=GROUP)
# The last belongs to another job, whose name only begins alike.
for name, count in [(f"{job}/algo-1-1790000000", 23_000), (f"{job}/algo-2-1790000000", 5), (f"{job}/algo-1-1790009000", 700),
                    (f"{job}0/algo-1-1790000000", 3)]:
    logs.create_log_stream(logGroupName=GROUP, logStreamName=name)
    for first in range(0, count, 5_000):
        # Three lines of each moment, in the order of their stream.
        events = [{"timestamp": now + line // 3, "message": f"{name} line={line} öß\tend"}
                  for line in range(first, min(first + 5_000, count))]
        logs.put_log_events(logGroupName=GROUP, logStreamName=name, logEvents=events)
print(url, flush=True)
sys.stdin.read()
server.stop()
