/**
 * Dialogs on the <dialog> element, which traps the focus, closes on Escape and restores the focus. A dialog is open as
 * long as it is rendered.
 */
import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type RefusedField, refusedField } from "../state/refused-field.ts";
import { messageOf } from "../state/toasts.ts";
import { Button, type ButtonProps } from "./button.tsx";
import { FieldRefusal } from "./field.tsx";
import { Icon } from "./icon.tsx";

/** The first field; in a dialog without one, the last button. */
const firstField = ".dialog-body :is(input, select, textarea), footer > :last-child button";
const firstButton = "footer button";

interface DialogProps {
  title: string;
  /** Selects the element that gets the focus. */
  first?: string;
  children: ComponentChildren;
  isWide?: boolean;
  onClose: () => void;
}

export function Dialog({ title, first = firstField, children, isWide = false, onClose }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  // Before the next key: an effect after the painting would lose it.
  useLayoutEffect(() => {
    const [dialog, before] = [element.current, document.activeElement];
    dialog?.showModal();
    dialog?.querySelector<HTMLElement>(first)?.focus();
    return () => {
      dialog?.close(); // nothing beside a modal dialog takes the focus
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  const closeOutside = (event: MouseEvent) => {
    if (event.target === element.current) onClose();
  };
  return (
    <dialog
      ref={element}
      class={isWide ? "dialog wide" : "dialog"}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClose={({ currentTarget: dialog }) => {
        // A second Escape in a row closes it without asking.
        if (dialog.isConnected) dialog.showModal();
      }}
      onMouseDown={closeOutside}
    >
      <header>
        <h2 id={id}>{title}</h2>
        <Button kind="quiet" icon="close" label="Close" onPress={onClose} />
      </header>
      {children}
    </dialog>
  );
}

interface FormDialogProps {
  title: string;
  children: ComponentChildren;
  /** Label of the confirming button. */
  confirm: string;
  kind?: ButtonProps["kind"];
  /** Paths of the fields that show the service's refusal of them. */
  paths?: readonly string[];
  /** The dialog closes when this resolves; an error is shown inside the dialog, which stays open. */
  onConfirm: () => Promise<void>;
  onClose: () => void;
}

/** A dialog with an action. Where it destroys, Cancel gets the focus. */
export function FormDialog(props: FormDialogProps) {
  const { title, children, confirm, kind = "primary", paths = [], onConfirm, onClose } = props;
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string>();
  const [refused, setRefused] = useState<RefusedField>();
  const submit = async (event: Event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    setProblem(undefined);
    setRefused(undefined);
    try {
      await onConfirm();
      onClose();
    } catch (error) {
      const field = refusedField(error, paths);
      setRefused(field);
      if (field === undefined) setProblem(messageOf(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} first={kind === "danger" ? firstButton : firstField} onClose={onClose}>
      <form onSubmit={submit}>
        <FieldRefusal.Provider value={refused}>
          <div class="dialog-body">{children}</div>
        </FieldRefusal.Provider>
        <div class="dialog-end">
          <FormProblem text={problem} />
          <footer>
            <Button onPress={onClose}>Cancel</Button>
            <Button type="submit" kind={kind} isBusy={isBusy}>
              {confirm}
            </Button>
          </footer>
        </div>
      </form>
    </Dialog>
  );
}

/** An error in place, announced to screen readers. */
export function FormProblem({ text }: { text: string | undefined }) {
  return (
    <div role="alert">
      {text !== undefined && (
        <p class="problem">
          <Icon name="warning" /> {text}
        </p>
      )}
    </div>
  );
}
