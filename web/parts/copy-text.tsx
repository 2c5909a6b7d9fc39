/** Text with a button that copies it. */
import { useState } from "preact/hooks";
import { useDashboard } from "../state/dashboard.ts";
import { Button } from "./button.tsx";

const shownMs = 2_000;

export function CopyButton({ text, label }: { text: string; label: string }) {
  const { toasts } = useDashboard();
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return toasts.failed(new Error("the browser does not let this page copy; select the text and copy it yourself"));
    }
    setCopied(true);
    setTimeout(() => setCopied(false), shownMs);
  };
  return <Button kind="quiet" icon={isCopied ? "check" : "copy"} label={isCopied ? "Copied" : label} onPress={copy} />;
}
