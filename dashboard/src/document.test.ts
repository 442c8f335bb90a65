import { describe, expect, it } from "vitest";
import { changed, isExperiment, read, valueOf } from "./document";

describe("what is pasted", () => {
  it("is JSON, YAML or the name of a model", async () => {
    expect(await read("  ")).toEqual({ kind: "nothing" });
    expect(await read('{"a": 1}')).toEqual({ kind: "document", value: { a: 1 } });
    expect(await read("base_model: Qwen/Qwen2.5-7B\nlearning_rate: 2e-4\n")).toEqual({ kind: "document", value: { base_model: "Qwen/Qwen2.5-7B", learning_rate: 2e-4 } });
    expect(await read("Qwen/Qwen2.5-7B")).toEqual({ kind: "name", name: "Qwen/Qwen2.5-7B" });
    expect(await read('[{"a": 1}, "gpt2"]')).toEqual({ kind: "documents", values: [{ a: 1 }, "gpt2"] });
  });

  it("says what is wrong with half a document", async () => {
    expect(await read('{"layers": ')).toMatchObject({ kind: "unreadable", why: expect.stringContaining("Not JSON yet") });
    expect(await read("a: [1, 2\nb: }")).toMatchObject({ kind: "unreadable", why: expect.stringContaining("Neither JSON nor YAML") });
    expect(await read("two words")).toMatchObject({ kind: "unreadable" });
  });

  it("keeps CloudFormation's functions and YAML's merges", async () => {
    const text = "a: &base {x: 1}\nb: {<<: *base, role: !GetAtt Role.Arn, bucket: !Ref Bucket, list: !Join ['-', [p, !Ref Q]]}";
    expect(await read(text)).toEqual({
      kind: "document",
      value: { a: { x: 1 }, b: { x: 1, role: { "Fn::GetAtt": ["Role", "Arn"] }, bucket: { Ref: "Bucket" }, list: { "Fn::Join": ["-", ["p", { Ref: "Q" }]] } } },
    });
  });
});

describe("changes", () => {
  it("leave the document as it was, and are refused where they do not fit", () => {
    const document = { profile: { micro_batch_per_gpu: 8, zero_stage: 1 } };
    expect(changed(document, [{ op: "replace", path: "/profile/micro_batch_per_gpu", value: 4 }, { op: "add", path: "/profile/gradient_accumulation", value: 2 }])).toEqual({
      profile: { micro_batch_per_gpu: 4, zero_stage: 1, gradient_accumulation: 2 },
    });
    expect(document.profile.micro_batch_per_gpu).toBe(8);
    expect(changed(document, [{ op: "replace", path: "/nothing/here", value: 1 }])).toBeUndefined();
  });

  it("are typed as JSON or as text", () => {
    expect(valueOf("500000000")).toBe(500000000);
    expect(valueOf('["on_demand"]')).toEqual(["on_demand"]);
    expect(valueOf("s3://bucket/data")).toBe("s3://bucket/data");
  });
});

it("an experiment has candidates", () => {
  expect(isExperiment({ candidates: [] })).toBe(true);
  expect(isExperiment({ TrainingJobName: "x" })).toBe(false);
  expect(isExperiment(null)).toBe(false);
});
