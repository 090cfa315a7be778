#!/bin/sh
# As the image mysql does: at the first start make the database and the user that the environment names, then run the command.
set -eu
data=/var/lib/mysql
install --directory --owner=mysql "$data" /run/mysqld
if [ ! -d "$data/mysql" ]; then
    mariadb-install-db --user=mysql --datadir="$data" --skip-test-db >/dev/null
    printf '%s\n' \
        "CREATE DATABASE \`$MYSQL_DATABASE\`;" \
        "CREATE USER '$MYSQL_USER'@'%' IDENTIFIED BY '$MYSQL_PASSWORD';" \
        "GRANT ALL ON \`$MYSQL_DATABASE\`.* TO '$MYSQL_USER'@'%';" \
        "ALTER USER 'root'@'localhost' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';" > /tmp/first.sql
    set -- "$@" --init-file=/tmp/first.sql
fi
exec "$@" --user=mysql --datadir="$data" --bind-address=0.0.0.0
