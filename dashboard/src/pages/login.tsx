/** Logging in with an API key. */

import { useState } from "preact/hooks";
import { Problem } from "../api/client";
import { logIn, trouble } from "../api/session";
import { ProblemBox } from "../ui/parts";

export function Login() {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState<Problem>();
  // Or why a login link was refused.
  const shown = problem ?? trouble.value;
  const submit = async (event: Event) => {
    event.preventDefault();
    setProblem(undefined);
    trouble.value = undefined;
    try {
      await logIn(key);
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, "Error", String(error), [], undefined, false));
    }
  };
  return (
    <main class="login">
      <form class="card" onSubmit={(event) => void submit(event)}>
        <h1>Bakeoff</h1>
        <p>Which instance should this training job run on, and what will it cost?</p>
        <label for="key">API key</label>
        <input id="key" type="password" autocomplete="current-password" placeholder="bk_…" value={key} onInput={(event) => setKey(event.currentTarget.value)} required />
        {shown && <ProblemBox problem={shown} />}
        <button class="primary">Log in</button>
        <p class="fine">
          No key yet? <code>bakeoff keys create --project research --role admin --budget-usd 500</code>
        </p>
      </form>
    </main>
  );
}
