/** The way in: an API key, or the word that a one-time link does it without one. */
import { useState } from "preact/hooks";
import { Button } from "../parts/button.tsx";
import { Problem } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { Logo } from "../parts/logo.tsx";
import type { Account } from "../state/account.ts";
import { said } from "../state/toasts.ts";

export function SignInPage({ account, reason }: { account: Account; reason: string | undefined }) {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState(reason);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    setProblem(undefined);
    try {
      await account.signIn(key.trim());
    } catch (error) {
      setProblem(said(error));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <Logo />
      <form class="card" onSubmit={submit}>
        <h1>Sign in</h1>
        <Field label="API key" hint="It stays in this browser tab, and is forgotten when you close it.">
          {(ties) => (
            <input
              {...ties}
              type="password"
              value={key}
              required
              autocomplete="current-password"
              spellcheck={false}
              onInput={(event) => setKey(event.currentTarget.value)}
            />
          )}
        </Field>
        <Problem text={problem} />
        <Button type="submit" kind="primary" isBusy={isBusy}>
          Sign in
        </Button>
      </form>
      <div class="sign-in-help">
        <p>
          No key at hand? On the server, <code>./capsule open</code> prints a link that signs you in once.
        </p>
        <p>
          The first key lies in the data folder: <code>cat .capsule/api-key</code>
        </p>
      </div>
    </main>
  );
}
