/** A button. When it cannot be used it stays focusable and shows the reason, which a disabled element cannot. */
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { Icon, type IconName } from "./icon.tsx";

export interface ButtonProps {
  children?: ComponentChildren;
  icon?: IconName;
  /** Accessible name of a button that is an icon only. */
  label?: string;
  kind?: "primary" | "plain" | "danger" | "quiet";
  /** Its effect, shown as a tooltip and read out after the label. */
  hint?: string | undefined;
  /** Why it cannot be used now. */
  refused?: string | undefined;
  /** Its action is running. */
  isBusy?: boolean;
  type?: "button" | "submit";
  onPress?: () => void;
}

export function Button(props: ButtonProps) {
  const { children, icon, label, kind = "plain", hint, refused, isBusy = false, type = "button", onPress } = props;
  const id = useId();
  const tip = refused ?? hint ?? (children === undefined ? label : undefined);
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
        aria-describedby={tip !== undefined && tip !== label ? id : undefined}
        onClick={press}
      >
        {isBusy ? <span class="spinner" aria-hidden="true" /> : icon && <Icon name={icon} />}
        {children}
      </button>
      {tip !== undefined && (
        <span class="tip" role="tooltip" id={id}>
          {tip}
        </span>
      )}
    </span>
  );
}
