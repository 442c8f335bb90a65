/** Documents that people paste: JSON, YAML or the name of a model; and changes to them (JSON Patch, RFC 6902). */

import { applyPatch, type Operation } from "rfc6902";
import type { CollectionTag, ScalarTag } from "yaml";

export type Pasted =
  | { kind: "nothing" }
  | { kind: "unreadable"; why: string }
  /** The name of a model, as the service knows some: `Qwen/Qwen2.5-7B`. */
  | { kind: "name"; name: string }
  | { kind: "document"; value: Record<string, unknown> }
  /** Several documents of one job. */
  | { kind: "documents"; values: readonly unknown[] };

const NAME = /^[\w.-]+(\/[\w.-]+)?$/;

export async function read(text: string): Promise<Pasted> {
  const trimmed = text.trim();
  if (!trimmed) return { kind: "nothing" };
  if (NAME.test(trimmed)) return { kind: "name", name: trimmed };
  let value: unknown;
  try {
    value = JSON.parse(trimmed);
  } catch (error) {
    // What begins as JSON is meant as JSON: its own error says more.
    if (/^[[{"]/.test(trimmed)) return { kind: "unreadable", why: `Not JSON yet: ${(error as Error).message}` };
    try {
      value = await fromYaml(trimmed);
    } catch (problem) {
      return { kind: "unreadable", why: `Neither JSON nor YAML: ${(problem as Error).message.split("\n")[0]}` };
    }
  }
  if (Array.isArray(value)) return { kind: "documents", values: value };
  if (typeof value === "object" && value !== null) return { kind: "document", value: value as Record<string, unknown> };
  return { kind: "unreadable", why: "This is a single value: paste an object, or the name of a model." };
}

/** Loaded when the first YAML is pasted. */
async function fromYaml(text: string): Promise<unknown> {
  const { parse } = await import("yaml").catch(() => {
    throw new Error("what reads YAML could not be loaded; try again");
  });
  return parse(text, { customTags: [...FUNCTIONS.flatMap(tagsOf)], merge: true });
}

/** CloudFormation's short forms: `!Ref x` is `{"Ref": "x"}`, `!Sub x` is `{"Fn::Sub": "x"}`. */
const FUNCTIONS = ["Ref", "Condition", "GetAtt", "Sub", "Join", "Select", "Split", "If", "Equals", "Not", "And", "Or", "FindInMap", "Base64", "Cidr", "GetAZs", "ImportValue", "Length", "ToJsonString", "Transform"];

function tagsOf(name: string): (ScalarTag | CollectionTag)[] {
  const member = name === "Ref" || name === "Condition" ? name : `Fn::${name}`;
  const ofText = (text: string) => {
    const dot = text.indexOf(".");
    return { [member]: name === "GetAtt" && dot > 0 ? [text.slice(0, dot), text.slice(dot + 1)] : text };
  };
  const ofCollection = (node: { toJSON(): unknown }) => ({ [member]: node.toJSON() });
  return [
    { tag: `!${name}`, resolve: ofText },
    { tag: `!${name}`, collection: "seq", resolve: ofCollection as never },
    { tag: `!${name}`, collection: "map", resolve: ofCollection as never },
  ];
}

/** Whether a document is an experiment, which can be planned and not only checked. */
export function isExperiment(value: unknown): boolean {
  return typeof value === "object" && value !== null && "candidates" in value;
}

export type Change = { op: string; path: string; value?: unknown };

/** A copy of a document with changes, or `undefined` where one of them does not fit it. */
export function changed<T>(document: T, patch: readonly Change[]): T | undefined {
  const copy = structuredClone(document);
  const errors = applyPatch(copy, patch as Operation[]);
  return errors.every((error) => error === null) ? copy : undefined;
}

/** What a person has typed: JSON, or else text. */
export function valueOf(typed: string): unknown {
  try {
    return JSON.parse(typed);
  } catch {
    return typed;
  }
}
