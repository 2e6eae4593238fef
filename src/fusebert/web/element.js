/** Elements: the page's own way to make parts of a document. Texts are texts, never markup. */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * An element with properties, attributes and children. `on` has listeners by event; names with a dash are attributes.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'on') for (const [event, work] of Object.entries(value)) element.addEventListener(event, work);
    else if (name === 'role' || name === 'for' || name.includes('-')) { if (value !== undefined) element.setAttribute(name, String(value)); }
    else if (value !== undefined) Object.assign(element, { [name]: value });
  }
  element.append(...solid(children));
  return element;
}

/**
 * An element of SVG.
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {...(Child | Child[])} children
 */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...solid(children));
  return element;
}

/**
 * Puts children in the place of those that an element has.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function fill(element, ...children) {
  element.replaceChildren(...solid(children));
}

/**
 * The element with an id, which the page must have.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @returns {T}
 */
export function part(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element ${id}`);
  return /** @type {T} */ (found);
}

/**
 * A button that copies a text.
 * @param {() => string} text
 * @param {string} [label]
 */
export function copyButton(text, label = 'Copy') {
  const button = make('button', { type: 'button' }, label);
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = label; }, 1200);
  });
  return button;
}

/**
 * Tabs of which one is shown: buttons of role tab whose aria-controls name the panels. Arrow keys move.
 * @param {HTMLElement} list
 * @param {(name: string) => void} [told]
 * @returns {(name: string) => void} shows the panel of that id
 */
export function tabs(list, told) {
  const buttons = /** @type {HTMLButtonElement[]} */ ([...list.querySelectorAll('[role=tab]')]);
  const panel = (/** @type {Element} */ button) => button.getAttribute('aria-controls') ?? '';
  /** @param {string} name */
  function show(name) {
    for (const button of buttons) {
      const chosen = panel(button) === name;
      button.setAttribute('aria-selected', String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      part(panel(button)).hidden = !chosen;
    }
    told?.(name);
  }
  for (const [i, button] of buttons.entries()) {
    button.addEventListener('click', () => show(panel(button)));
    button.addEventListener('keydown', (event) => {
      const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
      if (!step) return;
      const next = buttons[(i + step + buttons.length) % buttons.length];
      next.focus();
      show(panel(next));
      event.preventDefault();
    });
  }
  return show;
}

/** Light, dark, or as the system is: what the button with that id switches. @param {(() => void)} [changed] */
export function theme(changed) {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const button = part('theme');
  let chosen = localStorage.getItem('theme') ?? '';
  const apply = () => {
    const now = chosen || (system.matches ? 'dark' : 'light');
    document.documentElement.dataset.theme = now;
    button.textContent = now === 'dark' ? 'Light' : 'Dark';
    button.setAttribute('aria-label', `Use ${now === 'dark' ? 'light' : 'dark'} colours`);
    changed?.();
  };
  button.addEventListener('click', () => {
    chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    localStorage.setItem('theme', chosen);
    apply();
  });
  system.addEventListener('change', apply);
  apply();
}

/** @param {(Child | Child[])[]} children @returns {(Node | string)[]} */
function solid(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== '')
    .map((child) => (child instanceof Node ? child : String(child)));
}
