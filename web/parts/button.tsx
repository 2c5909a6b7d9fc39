/**
 * A button. One that cannot be used now stays reachable and says why: a disabled element could not even be asked.
 */
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { Icon, type IconName } from "./icon.tsx";

export interface ButtonProps {
  children?: ComponentChildren;
  icon?: IconName;
  /** Instead of words, for a button that is an icon only. */
  label?: string;
  kind?: "primary" | "plain" | "danger" | "quiet";
  /** What it will do, shown and read out beside the label. */
  hint?: string | undefined;
  /** Why it cannot be used now. */
  refused?: string | undefined;
  /** What it was pressed for is under way. */
  isBusy?: boolean;
  type?: "button" | "submit";
  onPress?: () => void;
}

export function Button(props: ButtonProps) {
  const { children, icon, label, kind = "plain", hint, refused, isBusy = false, type = "button", onPress } = props;
  const id = useId();
  const said = refused ?? hint ?? (children === undefined ? label : undefined);
  const press = (event: Event) => {
    if (refused !== undefined || isBusy) event.preventDefault();
    else onPress?.();
  };
  return (
    <span class="button-place">
      <button
        type={type}
        class={`button ${kind}${children === undefined ? " bare" : ""}`}
        aria-label={children === undefined ? label : undefined}
        aria-disabled={refused !== undefined || isBusy ? "true" : undefined}
        aria-busy={isBusy ? "true" : undefined}
        aria-describedby={said !== undefined && said !== label ? id : undefined}
        onClick={press}
      >
        {isBusy ? <span class="spinner" aria-hidden="true" /> : icon && <Icon name={icon} />}
        {children}
      </button>
      {said !== undefined && (
        <span class="tip" role="tooltip" id={id}>
          {said}
        </span>
      )}
    </span>
  );
}
