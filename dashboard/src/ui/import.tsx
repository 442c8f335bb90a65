/** An experiment made of what somebody has: what was read, what is asked, and what has no place in it. */

import { useEffect, useState } from "preact/hooks";
import { Problem, client, data, type Schemas } from "../api/client";
import { valueOf } from "../document";
import { ProblemBox, Section } from "./parts";

type Import = Schemas["Import"];
type Question = Schemas["ImportQuestion"];
export type Answers = Record<string, unknown>;

export function ImportPanel({
  documents,
  answers,
  onAnswers,
  onDraft,
}: {
  /** At most ten, of one training job. */
  documents: readonly unknown[];
  /** By the pointers of the questions. */
  answers: Answers;
  onAnswers: (answers: Answers) => void;
  /** Takes the experiment as it stands; `undefined` while what is shown is not what is pasted. */
  onDraft: ((spec: unknown) => void) | undefined;
}) {
  const [made, setMade] = useState<{ of: string; got: Import }>();
  const [problem, setProblem] = useState<Problem>();
  const [asked, setAsked] = useState(0);
  const key = JSON.stringify([documents, answers]);

  useEffect(() => {
    const abort = new AbortController();
    data(client.POST("/v1/imports", { body: { documents: [...documents], answers: answers as Record<string, never> }, signal: abort.signal })).then(
      (got) => {
        setMade({ of: key, got });
        setProblem(undefined);
      },
      (error: unknown) => {
        if (!abort.signal.aborted && error instanceof Problem) setProblem(error);
      },
    );
    return () => abort.abort();
  }, [key, asked]);

  const answer = (question: Pick<Question, "pointer" | "proposal">, typed: string) => {
    const { [question.pointer]: _, ...others } = answers;
    // Where a text is proposed, a text is wanted: "1.0" is a version, and no number.
    const value = typeof question.proposal === "string" ? typed : valueOf(typed);
    onAnswers(typed.trim() === "" ? others : { ...others, [question.pointer]: value });
  };
  const got = made?.got;
  const open = got?.questions.filter((one) => one.proposal === undefined) ?? [];
  const proposed = got?.questions.filter((one) => one.proposal !== undefined) ?? [];
  const isCurrent = made?.of === key && onDraft !== undefined;
  return (
    <Section
      title="The experiment made from this"
      aside={
        got && (
          <button class="primary" disabled={!got.is_complete || !isCurrent} title={got.is_complete ? undefined : "Answer what only you know first."} onClick={() => onDraft?.(got.spec)}>
            Continue with this experiment
          </button>
        )
      }
    >
      {problem && <ProblemBox problem={problem} retry={() => setAsked(asked + 1)} />}
      {got && (
        <>
          <p>
            {counted(got.read.length, "value")} read, {proposed.length} proposed
            {open.length > 0 ? `; ${open.length === 1 ? "1 needs" : `${open.length} need`} your answer.` : "."}
          </p>
          {open.length > 0 && <Questions of={open} onAnswer={answer} />}
          {Object.keys(answers).length > 0 && <Given answers={answers} onTakeBack={(pointer) => answer({ pointer }, "")} />}
          {proposed.length > 0 && (
            <details>
              <summary>{counted(proposed.length, "proposal")} to confirm or change</summary>
              <Questions of={proposed} onAnswer={answer} />
            </details>
          )}
          {got.left_out.length > 0 && (
            <>
              <h3>Left out</h3>
              <ul class="prose">
                {got.left_out.map((one) => (
                  <li key={one.member}>
                    <code>{one.member}</code>: {one.why}
                  </li>
                ))}
              </ul>
            </>
          )}
          <details>
            <summary>what each value was read from</summary>
            <ul class="prose fine">
              {got.read.map((one) => (
                <li key={one.pointer}>
                  <code>{one.pointer}</code> from {one.from}
                </li>
              ))}
            </ul>
          </details>
        </>
      )}
    </Section>
  );
}

const counted = (count: number, of: string) => `${count} ${of}${count === 1 ? "" : "s"}`;

function Questions({ of, onAnswer }: { of: readonly Question[]; onAnswer: (question: Question, typed: string) => void }) {
  return (
    <ul class="questions">
      {of.map((one) => (
        <li key={one.pointer}>
          <label>
            {one.question}
            <input name={one.pointer} placeholder={one.proposal === undefined ? "" : shortOf(one.proposal)} onChange={(event) => onAnswer(one, event.currentTarget.value)} />
          </label>
          <p class="fine">
            {one.why} (<code>{one.pointer}</code>)
          </p>
        </li>
      ))}
    </ul>
  );
}

function Given({ answers, onTakeBack }: { answers: Answers; onTakeBack: (pointer: string) => void }) {
  return (
    <>
      <h3>Your answers</h3>
      <ul class="plain fine">
        {Object.entries(answers).map(([pointer, value]) => (
          <li key={pointer}>
            <code>{pointer}</code> is {textOf(value)} <button onClick={() => onTakeBack(pointer)}>take back</button>
          </li>
        ))}
      </ul>
    </>
  );
}

/** A proposal that is longer than a line is explained below its field, and edited in the experiment itself. */
const shortOf = (proposal: unknown) => {
  const text = textOf(proposal);
  return text.length > 80 ? "as proposed" : text;
};

const textOf = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));
