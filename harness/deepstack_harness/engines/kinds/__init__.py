"""One engine per file: where its classes are, without torch; `*_model` files call them."""
