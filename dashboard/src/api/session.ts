/** Logging in and out: the key is exchanged for a cookie that scripts cannot read. */

import { signal } from "@preact/signals";
import { session, type Session } from "../state";
import { Problem } from "./client";

async function call(method: string, path: string, body?: unknown): Promise<Session | null> {
  let answer: Response;
  try {
    answer = await fetch(path, {
      method,
      credentials: "same-origin",
      ...(body === undefined ? {} : { headers: { "content-type": "application/json" }, body: JSON.stringify(body) }),
    });
  } catch {
    throw new Problem(0, "No answer", "The service cannot be reached from here.", [], undefined, true);
  }
  // To log out of a session that has ended is to be logged out.
  if (answer.status === 401 && method !== "POST") return null;
  if (answer.status === 204) return null;
  const told = (await answer.json().catch(() => ({}))) as { title?: string; detail?: string; request_id?: string; retryable?: boolean };
  if (!answer.ok) throw new Problem(answer.status, told.title ?? "Refused", told.detail ?? "", [], told.request_id, told.retryable ?? answer.status >= 500);
  return told as unknown as Session;
}

/** What follows `#login=` in a login link is used up, and taken out of the address. */
function takeToken(): string | undefined {
  const token = /^#login=([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (token) history.replaceState(null, "", location.pathname + location.search);
  return token;
}

/** Why it is not known who is logged in, and why a login link was refused. */
export const trouble = signal<Problem | undefined>(undefined);

const AGAIN_SECONDS = 5;
let timer: ReturnType<typeof setTimeout> | undefined;
/** Of a login link that has not been answered yet. */
let pending: string | undefined;

export async function whoIsThere(): Promise<void> {
  clearTimeout(timer);
  pending = takeToken() ?? pending;
  try {
    session.value = pending ? await call("POST", "/v1/sessions", { login_token: pending }) : await call("GET", "/v1/sessions/current");
    trouble.value = undefined;
    pending = undefined;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    trouble.value = error;
    if (error.retryable || !pending) {
      timer = setTimeout(() => void whoIsThere(), AGAIN_SECONDS * 1000);
      return;
    }
    // A link that is used up: who has followed it may still be logged in.
    pending = undefined;
    await whoIsThere();
    if (session.value === null) trouble.value = error;
  }
}

export async function logIn(apiKey: string): Promise<void> {
  clearTimeout(timer);
  session.value = await call("POST", "/v1/sessions", { api_key: apiKey.trim() });
  trouble.value = undefined;
}

/** @throws Problem where the service has not ended the session: it is still open. */
export async function logOut(): Promise<void> {
  await call("DELETE", "/v1/sessions/current");
  // What was typed is nobody else's.
  sessionStorage.clear();
  session.value = null;
}
