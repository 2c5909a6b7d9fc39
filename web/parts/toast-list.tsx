/** Toasts in the corner, announced to screen readers. */
import type { Toasts } from "../state/toasts.ts";
import { Button } from "./button.tsx";
import { Icon } from "./icon.tsx";

const icons = { error: "warning", done: "check", offer: "terminal" } as const;

export function ToastList({ toasts }: { toasts: Toasts }) {
  return (
    <section class="toasts" aria-label="Messages" aria-live="polite" aria-relevant="additions">
      {toasts.shown.value.map(({ id, kind, text, action }) => (
        <div key={id} class={`toast ${kind}`} role={kind === "error" ? "alert" : undefined}>
          <Icon name={icons[kind]} />
          <p>{text}</p>
          {action && <Button onPress={action.run}>{action.text}</Button>}
          <Button kind="quiet" icon="close" label="Dismiss" onPress={() => toasts.dismiss(id)} />
        </div>
      ))}
    </section>
  );
}
