/** The frame around every page: navigation, session, theme, and the page of the current route. */
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Health } from "../src/wire/health.ts";
import { AuditPage } from "./pages/audit.tsx";
import { CapsulePage } from "./pages/capsule.tsx";
import { CapsulesPage } from "./pages/capsules.tsx";
import { HealthNotice, useHealth, Version } from "./pages/health-notice.tsx";
import { KeysPage } from "./pages/keys.tsx";
import { SignInPage } from "./pages/sign-in.tsx";
import { TemplatesPage } from "./pages/templates.tsx";
import { UsagePage } from "./pages/usage.tsx";
import { Button } from "./parts/button.tsx";
import { Icon, type IconName } from "./parts/icon.tsx";
import { Logo } from "./parts/logo.tsx";
import { OfferList, ToastList } from "./parts/toast-list.tsx";
import type { Account, SignedIn } from "./state/account.ts";
import { Dashboard, DashboardContext, useDashboard } from "./state/dashboard.ts";
import { hrefOf, type Route, route } from "./state/route.ts";
import { applyTheme, savedTheme, saveTheme, type Theme } from "./state/theme.ts";
import { Toasts } from "./state/toasts.ts";

export function App({ account }: { account: Account }) {
  const state = account.state.value;
  switch (state.phase) {
    case "asking":
      return (
        <main class="sign-in" aria-busy="true">
          <h1>
            <Logo />
          </h1>
          <p role="status">{state.problem === undefined ? "Signing in …" : `${state.problem}. Retrying …`}</p>
        </main>
      );
    case "out":
      return <SignInPage account={account} reason={state.reason} />;
    case "in":
      return <Shell key={state.session.keyId} signedIn={state} onSignOut={() => account.signOut()} />;
  }
}

function Shell({ signedIn, onSignOut }: { signedIn: SignedIn; onSignOut: () => void }) {
  const dashboard = useMemo(() => new Dashboard(signedIn.client, signedIn.session, new Toasts(), onSignOut), []);
  useEffect(() => {
    const leaving = new AbortController();
    void dashboard.follow(leaving.signal);
    return () => leaving.abort();
  }, [dashboard]);
  return (
    <DashboardContext.Provider value={dashboard}>
      <button type="button" class="skip" onClick={() => document.querySelector<HTMLElement>("#content h1")?.focus()}>
        Skip to content
      </button>
      <Frame />
      <ToastList toasts={dashboard.toasts} />
    </DashboardContext.Provider>
  );
}

function Frame() {
  const health = useHealth();
  const { toasts } = useDashboard();
  return (
    <div class="shell">
      <SideBar health={health} />
      <main id="content" class="content">
        <ConnectionNotice />
        <HealthNotice health={health} />
        <OfferList toasts={toasts} />
        <CurrentPage shown={route.value} />
      </main>
    </div>
  );
}

function CurrentPage({ shown }: { shown: Route }) {
  switch (shown.page) {
    case "capsules":
      return <CapsulesPage />;
    case "capsule":
      return <CapsulePage key={shown.id} id={shown.id} tab={shown.tab} />;
    case "templates":
      return <TemplatesPage />;
    case "keys":
      return <KeysPage />;
    case "usage":
      return <UsagePage />;
    case "audit":
      return <AuditPage key={shown.capsule} capsule={shown.capsule} />;
  }
}

const navItems: readonly {
  page: "capsules" | "templates" | "keys" | "usage" | "audit";
  name: string;
  icon: IconName;
}[] = [
  { page: "capsules", name: "Capsules", icon: "box" },
  { page: "templates", name: "Templates", icon: "layers" },
  { page: "keys", name: "API keys", icon: "key" },
  { page: "usage", name: "Usage", icon: "gauge" },
  { page: "audit", name: "Audit log", icon: "list" },
];

function SideBar({ health }: { health: Health | undefined }) {
  const { session, signOut } = useSession();
  const here = route.value.page === "capsule" ? "capsules" : route.value.page;
  return (
    <header class="side">
      <a class="home" href={hrefOf({ page: "capsules" })} aria-label="Capsule, first page">
        <Logo />
      </a>
      <nav aria-label="Main">
        {navItems.map(({ page, name, icon }) => (
          <a key={page} href={hrefOf({ page })} aria-current={here === page ? "page" : undefined}>
            <Icon name={icon} />
            <span>{name}</span>
          </a>
        ))}
      </nav>
      <div class="side-foot">
        <Version health={health} />
        <a class="side-link" href="/docs" target="_blank" rel="noreferrer">
          API reference
        </a>
        <ThemeChoice />
        <div class="who">
          <p>
            <span class="team">{session.team}</span>
            <span class="muted">{session.keyName || "unnamed key"}</span>
          </p>
          <Button kind="quiet" icon="exit" label="Sign out" onPress={signOut} />
        </div>
      </div>
    </header>
  );
}

function useSession() {
  const dashboard = useDashboard();
  return { session: dashboard.session, signOut: () => dashboard.signOut() };
}

const themeIcons: Record<Theme, IconName> = { system: "screen", light: "sun", dark: "moon" };
const nextTheme: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

function ThemeChoice() {
  const [theme, setTheme] = useState(savedTheme);
  const choose = () => {
    const next = nextTheme[theme];
    saveTheme(next);
    applyTheme(next);
    setTheme(next);
  };
  return (
    <Button kind="quiet" icon={themeIcons[theme]} onPress={choose} hint={`Change to ${nextTheme[theme]}`}>
      <span class="theme-name">Theme: {theme}</span>
    </Button>
  );
}

/** No notice before the first connection has had this long. */
const startMs = 3_000;

function ConnectionNotice() {
  const { isLive } = useDashboard();
  const [isStarting, setStarting] = useState(true);
  useEffect(() => {
    const timer = setTimeout(() => setStarting(false), startMs);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class="connection" role="status">
      {!isLive.value && !isStarting && (
        <p class="notice">
          <Icon name="warning" /> The connection to the server is lost; this page may be out of date. Reconnecting …
        </p>
      )}
    </div>
  );
}
