/** Tabs by the ARIA pattern: one tab stop, arrow keys between the tabs. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface TabsProps<T extends string> {
  label: string;
  tabs: readonly { value: T; name: ComponentChildren }[];
  chosen: T;
  /** Prefix of the ids that tie tabs to their panel. */
  id: string;
  onChoose: (value: T) => void;
}

export function Tabs<T extends string>({ label, tabs, chosen, id, onChoose }: TabsProps<T>) {
  const list = useRef<HTMLDivElement>(null);
  // On a narrow screen the tabs scroll, and the address may choose one of the last.
  useLayoutEffect(() => {
    list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [chosen]);
  const move = (event: KeyboardEvent) => {
    const all = [...(list.current?.querySelectorAll<HTMLElement>('[role="tab"]') ?? [])];
    // The focus moves at once; the choice is shown a moment later, and another key may come before.
    const at = all.indexOf(event.target as HTMLElement);
    const steps: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    const next = steps[event.key];
    if (next === undefined || at === -1) return;
    event.preventDefault();
    const index = (next + tabs.length) % tabs.length;
    onChoose(tabs[index]!.value);
    all[index]?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} ref={list} onKeyDown={move}>
      {tabs.map(({ value, name }) => (
        <button
          key={value}
          type="button"
          role="tab"
          id={`${id}-tab-${value}`}
          aria-selected={value === chosen}
          aria-controls={value === chosen ? `${id}-panel` : undefined}
          tabIndex={value === chosen ? 0 : -1}
          onClick={() => onChoose(value)}
        >
          {name}
        </button>
      ))}
    </div>
  );
}

export function TabPanel({ id, chosen, children }: { id: string; chosen: string; children: ComponentChildren }) {
  return (
    <div class="tab-panel" role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-tab-${chosen}`}>
      {children}
    </div>
  );
}
