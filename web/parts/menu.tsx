/** A button that shows further buttons below it until one is pressed, the focus leaves them, or Escape. */
import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon, type IconName } from "./icon.tsx";

interface MenuProps {
  label: string;
  children: (close: () => void) => ComponentChildren;
}

export function Menu({ label, children }: MenuProps) {
  const [isOpen, setOpen] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  const id = useId();
  /** The opener has the focus before an item acts, so that a dialog gives it back to an element that stays. */
  const close = () => {
    opener.current?.focus();
    setOpen(false);
  };
  // With the menu's elements: a key that comes before the painting would be lost.
  useLayoutEffect(() => {
    if (!isOpen) return;
    const leave = ({ target }: Event) => {
      if (!place.current?.contains(target as Node)) setOpen(false);
    };
    const end = ({ key }: KeyboardEvent) => {
      if (key === "Escape") close();
    };
    const ends = new AbortController();
    for (const type of ["pointerdown", "focusin"]) document.addEventListener(type, leave, ends);
    document.addEventListener("keydown", end, ends);
    return () => ends.abort();
  }, [isOpen]);
  return (
    <div class="menu" ref={place}>
      <button
        ref={opener}
        type="button"
        class="button plain bare"
        aria-label={label}
        aria-expanded={isOpen}
        aria-controls={isOpen ? id : undefined}
        onClick={() => setOpen(!isOpen)}
      >
        <Icon name="more" />
      </button>
      {isOpen && (
        <div class="menu-items" id={id}>
          {children(close)}
        </div>
      )}
    </div>
  );
}

interface MenuItemProps {
  icon: IconName;
  text: string;
  /** Its effect, below the text. */
  hint: string;
  isDanger?: boolean;
  /** Why it cannot be used now, in place of the hint. */
  refused?: string | undefined;
  onPress: () => void;
}

/** The whole item can be pressed; the button's name is the text alone. */
export function MenuItem({ icon, text, hint, isDanger = false, refused, onPress }: MenuItemProps) {
  const id = useId();
  return (
    <div class={isDanger ? "menu-item danger" : "menu-item"}>
      <Icon name={icon} />
      <button
        type="button"
        aria-describedby={id}
        aria-disabled={refused !== undefined ? "true" : undefined}
        onClick={() => {
          if (refused === undefined) onPress();
        }}
      >
        {text}
      </button>
      <span class="sub" id={id}>
        {refused ?? hint}
      </span>
    </div>
  );
}
