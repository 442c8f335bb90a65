/** Logging in and out: the key is exchanged for a cookie that scripts cannot read. */

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
  if (answer.status === 401 && method === "GET") return null;
  if (answer.status === 204) return null;
  const told = (await answer.json().catch(() => ({}))) as { title?: string; detail?: string; request_id?: string; retryable?: boolean };
  if (!answer.ok) throw new Problem(answer.status, told.title ?? "Refused", told.detail ?? "", [], told.request_id, told.retryable ?? false);
  return told as unknown as Session;
}

/** What follows `#login=` in a login link is used up, and taken out of the address. */
function takeToken(): string | undefined {
  const token = /^#login=([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (token) history.replaceState(null, "", location.pathname + location.search);
  return token;
}

export async function whoIsThere(): Promise<void> {
  const token = takeToken();
  if (token) {
    const made = await call("POST", "/v1/sessions", { login_token: token }).catch(() => null);
    if (made) {
      session.value = made;
      return;
    }
  }
  session.value = await call("GET", "/v1/sessions/current").catch(() => null);
}

export async function logIn(apiKey: string): Promise<void> {
  session.value = await call("POST", "/v1/sessions", { api_key: apiKey.trim() });
}

export async function logOut(): Promise<void> {
  await call("DELETE", "/v1/sessions/current").catch(() => null);
  // What was typed is nobody else's.
  sessionStorage.clear();
  session.value = null;
}
