/** The sign-in form, with directions to a key or a one-time link. */
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { hasCode } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { FormProblem } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { Logo } from "../parts/logo.tsx";
import type { Account } from "../state/account.ts";
import { messageOf } from "../state/toasts.ts";

const notValid = "No team has this key: it is mistyped, was revoked, or has expired.";

export function SignInPage({ account, reason }: { account: Account; reason: string | undefined }) {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState(reason);
  const [isBusy, setBusy] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => field.current?.focus(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    setProblem(undefined);
    try {
      await account.signIn(key.trim());
    } catch (error) {
      setProblem(hasCode(error, "unauthorized") ? notValid : messageOf(error));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <Logo />
      <form class="card" onSubmit={submit}>
        <h1>Sign in</h1>
        <Field label="API key" hint="Kept until the last tab with this dashboard is closed.">
          {(ties) => (
            <input
              {...ties}
              ref={field}
              type="password"
              value={key}
              required
              autocomplete="current-password"
              spellcheck={false}
              onInput={(event) => setKey(event.currentTarget.value)}
            />
          )}
        </Field>
        <FormProblem text={problem} />
        <Button type="submit" kind="primary" isBusy={isBusy}>
          Sign in
        </Button>
      </form>
      <div class="sign-in-help">
        <p>
          No key? On the server, <code>capsule open</code> (in a clone <code>./capsule open</code>) prints a one-time
          sign-in link.
        </p>
      </div>
    </main>
  );
}
