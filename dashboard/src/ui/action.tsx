/** Something that changes the world: it says what it does and what it costs before it does it. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Problem } from "../api/client";
import { session } from "../state";
import { ProblemBox } from "./parts";

const RANK = ["viewer", "editor", "admin"];

export function Action({
  name,
  about,
  needs = "editor",
  tone,
  disabled,
  run,
  children,
}: {
  name: string;
  /** What it is done to, where there are several. */
  about?: string | undefined;
  needs?: "editor" | "admin";
  tone?: "danger" | "primary";
  /** Why it cannot be done right now. */
  disabled?: string | undefined;
  /** Does it, with what was typed into the dialog's fields. */
  run: (form: FormData) => Promise<unknown>;
  /** What happens then, in words and dollars, and the fields. */
  children: ComponentChildren;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const form = useRef<HTMLFormElement>(null);
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const role = session.value?.role ?? "viewer";
  const may = RANK.indexOf(role) >= RANK.indexOf(needs);
  // Counts openings: each one begins with what holds now, and not with what was typed before.
  const [opened, setOpened] = useState(0);
  useLayoutEffect(() => {
    if (opened > 0) dialog.current?.showModal();
  }, [opened]);
  const open = () => {
    setProblem(undefined);
    setOpened(opened + 1);
  };
  const act = async (event: Event) => {
    event.preventDefault();
    if (!form.current || busy) return;
    setBusy(true);
    setProblem(undefined);
    try {
      await run(new FormData(form.current));
      dialog.current?.close();
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, "Error", String(error), [], undefined, false));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" class={tone} disabled={!may || disabled !== undefined} title={may ? disabled : `Needs the role ${needs}; yours is ${role}.`} onClick={open}>
        {name}
      </button>
      <dialog ref={dialog} aria-label={about ? `${name}: ${about}` : name}>
        <form ref={form} onSubmit={(event) => void act(event)}>
          <h2>{about ? `${name}: ${about}` : name}</h2>
          <div class="prose" key={opened}>
            {children}
          </div>
          {problem && <ProblemBox problem={problem} />}
          <div class="buttons">
            <button type="button" onClick={() => dialog.current?.close()}>
              Back
            </button>
            <button class={tone ?? "primary"} disabled={busy}>
              {busy ? "…" : name}
            </button>
          </div>
        </form>
      </dialog>
    </>
  );
}

/** A number that was typed; an empty field is `undefined`, and not 0. */
export function amount(form: FormData, field: string): number | undefined {
  const typed = String(form.get(field) ?? "").trim();
  return typed === "" ? undefined : Number(typed);
}
