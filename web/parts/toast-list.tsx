/** Toasts in the corner, and offers in the flow of the page, where they cover nothing. Screen readers announce both. */
import { useLayoutEffect } from "preact/hooks";
import { route } from "../state/route.ts";
import type { Toasts } from "../state/toasts.ts";
import { Button } from "./button.tsx";
import { Icon } from "./icon.tsx";

const icons = { error: "warning", done: "check" } as const;

export function ToastList({ toasts }: { toasts: Toasts }) {
  return (
    <section class="toasts" aria-label="Messages" aria-live="polite" aria-relevant="additions">
      {toasts.shown.value.map(({ id, kind, text }) => (
        <div key={id} class={`toast ${kind}`} role={kind === "error" ? "alert" : undefined}>
          <Icon name={icons[kind]} />
          <p>{text}</p>
          <Button kind="quiet" icon="close" label="Dismiss" onPress={() => toasts.dismiss(id)} />
        </div>
      ))}
    </section>
  );
}

export function OfferList({ toasts }: { toasts: Toasts }) {
  // Before the page that is left makes offers of its own.
  useLayoutEffect(() => toasts.turnPage(), [route.value]);
  return (
    <div class="offers" role="status">
      {toasts.offers.value.map(({ id, text, button, run }) => (
        <div key={id} class="offer">
          <Icon name="terminal" />
          <p class="breakable">{text}</p>
          <Button onPress={run}>{button}</Button>
          <Button kind="quiet" icon="close" label="Dismiss" onPress={() => toasts.dismiss(id)} />
        </div>
      ))}
    </div>
  );
}
