"""Make the shop's table of products in the database that WAREHOUSE_URL names."""

import os

from sqlalchemy import create_engine, text

PRODUCTS = [
    ("A-100", "Espresso cup", "kitchen"),
    ("A-101", "Cutting board", "kitchen"),
    ("B-200", "Desk lamp", "office"),
    ("B-201", "Notebook", "office"),
    ("C-300", "Rain jacket", "clothing"),
]

engine = create_engine(os.environ["WAREHOUSE_URL"])
with engine.begin() as connection:
    connection.execute(text("DROP TABLE IF EXISTS shop_products"))
    connection.execute(
        text(
            "CREATE TABLE shop_products (sku VARCHAR(20) PRIMARY KEY,"
            " name VARCHAR(100) NOT NULL, category VARCHAR(40) NOT NULL)"
        )
    )
    connection.execute(
        text("INSERT INTO shop_products VALUES (:sku, :name, :category)"),
        [dict(zip(("sku", "name", "category"), row, strict=True)) for row in PRODUCTS],
    )
print(f"shop_products: {len(PRODUCTS)} rows")
