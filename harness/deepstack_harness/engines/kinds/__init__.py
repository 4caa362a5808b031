"""One engine per file: where its classes lie, without torch; `*_model` files drive them."""
