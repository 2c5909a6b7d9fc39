/**
 * The layout of every page: a heading that gets the focus on navigation, actions, and the states empty, loading,
 * failed.
 */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Button } from "./button.tsx";
import { Icon, type IconName } from "./icon.tsx";

interface PageProps {
  title: string;
  /** Content of the heading; default: the title. */
  heading?: ComponentChildren;
  /** Right of the heading. */
  beside?: ComponentChildren;
  /** Link to the parent page. */
  back?: ComponentChildren;
  lead?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
}

let isFirst = true;

export function Page({ title, heading = title, beside, back, lead, actions, children }: PageProps) {
  const top = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${title} · Capsule`;
  }, [title]);
  // With the page's elements: an effect after the painting would take the focus from a button that was reached meanwhile.
  useLayoutEffect(() => {
    if (!isFirst) top.current?.focus({ preventScroll: true });
    isFirst = false;
  }, []);
  return (
    <>
      <header class="page-head">
        <div>
          {back !== undefined && <p class="back">{back}</p>}
          <div class="title">
            <h1 ref={top} tabIndex={-1}>
              {heading}
            </h1>
            {beside}
          </div>
          {lead !== undefined && <div class="lead">{lead}</div>}
        </div>
        {actions !== undefined && <div class="actions">{actions}</div>}
      </header>
      {children}
    </>
  );
}

export function Empty({ icon, title, children }: { icon: IconName; title: string; children: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** Placeholder of a table that is loading. */
export function Skeleton({ rows = 4 }: { rows?: number }) {
  return (
    <div class="skeleton" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, row) => (
        <div key={row} />
      ))}
    </div>
  );
}

/** Replaces content that could not be loaded. */
export function LoadError({ problem, onRetry }: { problem: string; onRetry: () => void }) {
  return (
    <div class="empty" role="alert">
      <Icon name="warning" />
      <p class="empty-title">{problem}</p>
      <Button icon="refresh" onPress={onRetry}>
        Try again
      </Button>
    </div>
  );
}
