/** Typed calls of the service, with its errors as people read them. */

import createClient from "openapi-fetch";
import { session } from "../state";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** An error of the service (RFC 9457), or of the way there. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly errors: readonly Schemas["FieldError"][],
    readonly requestId: string | undefined,
    readonly retryable: boolean,
  ) {
    super(`${title}: ${detail}`);
  }
}

export const OFFLINE = 0;

export const client = createClient<paths, "application/json">({ baseUrl: "", credentials: "same-origin" });

type Answer<T> = { data?: T; error?: unknown; response: Response };

/** The data of an answer, or the problem thrown. Whoever learns that the session has ended leads to the login. */
export async function data<T>(answer: Promise<Answer<T>>): Promise<T> {
  let got: Answer<T>;
  try {
    got = await answer;
  } catch {
    throw new Problem(OFFLINE, "No answer", "The service cannot be reached from here.", [], undefined, true);
  }
  if (got.response.ok) return got.data as T;
  if (got.response.status === 401) session.value = null;
  const told = (got.error ?? {}) as Partial<Schemas["Problem"]>;
  throw new Problem(
    got.response.status,
    told.title ?? `Status ${got.response.status}`,
    told.detail ?? "The answer was not one of this service: something between may have sent it.",
    told.errors ?? [],
    told.request_id,
    told.retryable ?? got.response.status >= 500,
  );
}

/** The very request as something to paste: curl, and Python. */
export function asCurl(path: string): string {
  return `curl -s -H "Authorization: Bearer $BAKEOFF_API_KEY" "$BAKEOFF_URL${path}"`;
}

export function asPython(path: string): string {
  return [
    "import os, httpx",
    'headers = {"Authorization": "Bearer " + os.environ["BAKEOFF_API_KEY"]}',
    `answer = httpx.get(os.environ["BAKEOFF_URL"] + ${JSON.stringify(path)}, headers=headers).raise_for_status().json()`,
  ].join("\n");
}
