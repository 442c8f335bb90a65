/** Something that changes the world: it says what it does and what it costs before it does it. */

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { Problem } from "../api/client";
import { session } from "../state";
import { ProblemBox } from "./parts";

const RANK = ["viewer", "editor", "admin"];

export function Action({
  name,
  needs = "editor",
  tone,
  run,
  children,
}: {
  name: string;
  needs?: "editor" | "admin";
  tone?: "danger" | "primary";
  /** Does it. */
  run: () => Promise<unknown>;
  /** What happens then, in words and dollars. */
  children: ComponentChildren;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const role = session.value?.role ?? "viewer";
  const may = RANK.indexOf(role) >= RANK.indexOf(needs);
  const act = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      await run();
      dialog.current?.close();
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, "Error", String(error), [], undefined, false));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button class={tone} disabled={!may} title={may ? undefined : `It takes the role ${needs}; yours is ${role}.`} onClick={() => dialog.current?.showModal()}>
        {name}
      </button>
      <dialog ref={dialog} aria-label={name}>
        <h2>{name}</h2>
        <div class="prose">{children}</div>
        {problem && <ProblemBox problem={problem} />}
        <div class="buttons">
          <button onClick={() => dialog.current?.close()}>Leave it</button>
          <button class={tone ?? "primary"} disabled={busy} onClick={() => void act()}>
            {busy ? "…" : name}
          </button>
        </div>
      </dialog>
    </>
  );
}
