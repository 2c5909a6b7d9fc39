/** A button that copies a text. */
import { useState } from "preact/hooks";
import { useDashboard } from "../state/dashboard.ts";
import { Button } from "./button.tsx";

const shownMs = 2_000;

interface CopyProps {
  /** A function: makes the text when it is asked for. */
  text: string | (() => Promise<string>);
  label: string;
}

export function CopyButton({ text, label }: CopyProps) {
  const { toasts } = useDashboard();
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    let made: string;
    try {
      made = typeof text === "string" ? text : await text();
    } catch (error) {
      return toasts.failed(error);
    }
    try {
      await navigator.clipboard.writeText(made);
    } catch {
      const where = typeof text === "string" ? "the text" : `this: ${made}`;
      return toasts.failed(new Error(`the browser does not let this page copy; copy it yourself: select ${where}`));
    }
    setCopied(true);
    setTimeout(() => setCopied(false), shownMs);
  };
  return <Button kind="quiet" icon={isCopied ? "check" : "copy"} label={isCopied ? "Copied" : label} onPress={copy} />;
}
