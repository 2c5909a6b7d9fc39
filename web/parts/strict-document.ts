/**
 * xterm.js under a Content-Security-Policy without 'unsafe-inline'. The policy forbids <style> elements and `style`
 * attributes, but allows constructed style sheets and declarations set by a script. xterm's styles are redirected to
 * these.
 */

/** For the option documentOverride: <style> elements become constructed style sheets. */
export function strictDocument(): Document {
  return new Proxy(document, {
    get(target, property) {
      if (property === "createElement") return createElement;
      const value: unknown = Reflect.get(target, property, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}

/**
 * Opens a terminal. xterm.js 6.0 ignores documentOverride in two places and uses the page's document: for the style of
 * its scroll bar while it opens, and for the cells of its rows until it is disposed.
 */
export function withStrictDocument(open: () => void): void {
  HTMLSpanElement.prototype.setAttribute = setAttribute;
  document.createElement = createElement as Document["createElement"];
  try {
    open();
  } finally {
    Reflect.deleteProperty(document, "createElement");
  }
}

function createElement(name: string): HTMLElement {
  const element = Document.prototype.createElement.call(document, name === "style" ? "template" : name);
  return name === "style" ? sheetBehind(element) : element;
}

/** An element whose text becomes a style sheet of the document, until the element is removed. */
function sheetBehind(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  Object.defineProperty(element, "textContent", {
    set(text: string) {
      sheet.replaceSync(text);
      if (!document.adoptedStyleSheets.includes(sheet)) document.adoptedStyleSheets.push(sheet);
    },
  });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

/** As Element.setAttribute, but sets `style` through the CSSOM, which the policy allows. */
function setAttribute(this: HTMLElement, name: string, value: string): void {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
}
