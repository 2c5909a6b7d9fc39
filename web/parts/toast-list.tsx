/** Toasts in the corner, announced to screen readers. */
import type { Toasts } from "../state/toasts.ts";
import { Button } from "./button.tsx";
import { Icon } from "./icon.tsx";

export function ToastList({ toasts }: { toasts: Toasts }) {
  return (
    <section class="toasts" aria-label="Messages" aria-live="polite" aria-relevant="additions">
      {toasts.shown.value.map(({ id, kind, text }) => (
        <div key={id} class={`toast ${kind}`} role={kind === "error" ? "alert" : undefined}>
          <Icon name={kind === "error" ? "warning" : "check"} />
          <p>{text}</p>
          <Button kind="quiet" icon="close" label="Dismiss" onPress={() => toasts.dismiss(id)} />
        </div>
      ))}
    </section>
  );
}
